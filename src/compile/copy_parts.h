// Copies between a tensor and the flat buffers that collectives move.
#pragma once

#include <cstdint>
#include <vector>

#include "compile/draft.h"

namespace perigee::compile {

// Indices of a dim, or rows of a matrix: `count` of them from `begin` on.
struct Span {
  int64_t begin = 0;
  int64_t count = 0;
  bool operator==(const Span&) const = default;
};

// Returns the spans of a dim's parts, one behind the other.
std::vector<Span> spans_of(const std::vector<int64_t>& lengths);

// Appends the copies between parts of a tensor's `dim` and their flat images, one behind the other
// from the start of `flat`: one copy for neighbours that are equally long and equally far apart.
// The copies carry the scope and phase of `like`.
void copy_parts(Draft& draft, ValueId whole, int64_t dim, const std::vector<Span>& parts,
                ValueId flat, bool to_flat, const Instruction& like,
                std::vector<DraftInstruction>& out);

}  // namespace perigee::compile
