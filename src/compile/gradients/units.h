// Units (plan::Unit): parameters that are stored in parts over ranks, as ZeRO and FSDP do.
#pragma once

#include <cstdint>
#include <vector>

#include "compile/draft/source.h"
#include "compile/gradients/gathers.h"
#include "compile/gradients/gradients.h"

namespace perigee::compile {

// Makes a bucket of each unit's parameters, before all other buckets.
void collect_units(const Source& source, Gradients& gradients);

// Gives a unit's bucket its values, and weights and optimizer state their bindings: one for each
// piece of a parameter that the rank holds.
void make_unit_state(Draft& draft, const Source& source, Gradients& gradients, Bucket& bucket,
                     std::vector<ValueId>& inputs);

// Appends the reduce-scatter of a unit's gradients into `target`, this rank's part.
// Returns its event.
int32_t scatter_unit(Draft& draft, const Source& source, const Gradients& gradients,
                     const Bucket& bucket, ValueId target, uint8_t when,
                     std::vector<DraftInstruction>& out);

// Appends the all-gather of a unit's weights into Bucket::gathered, after a cast of each rank's
// part where ops read them in a lower precision; in the first microbatch only where one all-gather
// serves all microbatches.
void gather_unit(Draft& draft, const Gradients& gradients, const Gather& gather,
                 std::vector<DraftInstruction>& out);

// Returns the instruction that gathers the updated weights of levels 1 and 2, which every rank
// stores in full, into Bucket::weights.
DraftInstruction gather_stepped(Draft& draft, const Gradients& gradients, const Bucket& bucket);

// Appends, for units whose ranks hold one copy of the weights, the barrier after which every rank
// reads the weights that the others have written.
void end_unit_steps(Draft& draft, const Gradients& gradients, std::vector<DraftInstruction>& out);

// Gives each all-gather of a unit except the first a value of its own, which
// later instructions read.
void separate_gathers(Draft& draft, const Gradients& gradients);

}  // namespace perigee::compile
