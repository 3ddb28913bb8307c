// Reduction of a bucket's gradients, in their own or a lower precision.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compile/draft/source.h"
#include "compile/gradients/gradients.h"

namespace perigee::compile {

// Returns the type that gradients are rounded to before they are reduced; nothing where they are
// reduced in their own type.
std::optional<graph::DType> reduced_type(const Source& source, graph::DType gradients);

// Returns whether ranks clip their own gradients: then all reductions run in the step section.
bool clips_first(const Source& source);

// Append the reduction of a bucket's gradients (of a unit: of the rank's part) over Bucket::axes,
// and, where the gradients were rounded, the cast of the result into them.
void start_reduction(Draft& draft, const Source& source, const Bucket& bucket,
                     const std::string& reduce, uint8_t when, std::vector<DraftInstruction>& out);
void end_reduction(const Source& source, const Bucket& bucket, std::vector<DraftInstruction>& out);

}  // namespace perigee::compile
