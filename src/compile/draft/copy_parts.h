// Copies between a tensor and the flat buffers that collectives move.
#pragma once

#include <cstdint>
#include <vector>

#include "compile/draft/draft.h"
#include "mesh/placement.h"

namespace perigee::compile {

// Returns the ranges of a dim's parts, one behind the other.
std::vector<mesh::Range> ranges_of(const std::vector<int64_t>& lengths);

// Appends the copies between parts of a tensor's `dim` and their flat images, one behind the other
// from the start of `flat`: one copy for neighbours that are equally long and equally far apart.
// The copies carry the scope and phase of `like`.
void copy_parts(Draft& draft, ValueId whole, int64_t dim, const std::vector<mesh::Range>& parts,
                ValueId flat, bool to_flat, const Instruction& like,
                std::vector<DraftInstruction>& out);

}  // namespace perigee::compile
