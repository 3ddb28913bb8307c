// Copies between a tensor and the flat buffers that collectives move.
#pragma once

#include <cstdint>
#include <vector>

#include "compile/draft/draft.h"
#include "mesh/placement.h"

namespace perigee::compile {

// Returns the consecutive ranges of a dim's parts.
std::vector<mesh::Range> ranges_of(const std::vector<int64_t>& lengths);

// Appends the copies between parts of a tensor's `dim` and `flat`, the concatenation of the parts:
// one copy per run of parts with equal lengths and distances. The copies have the scope and phase
// of `like`.
void copy_parts(Draft& draft, ValueId whole, int64_t dim, const std::vector<mesh::Range>& parts,
                ValueId flat, bool to_flat, const Instruction& like,
                std::vector<DraftInstruction>& out);

}  // namespace perigee::compile
