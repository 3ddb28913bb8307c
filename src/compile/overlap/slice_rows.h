// Cuts the rows of a matrix product, and the parts of a collective over them, into the same pieces.
#pragma once

#include <cstdint>
#include <vector>

#include "compile/draft/draft.h"
#include "mesh/placement.h"

namespace perigee::compile {

// The tensor that a collective gathers, or whose sums it scatters: [outer, rows of all parts,
// columns], of which rank r of the group has lengths[r] rows. As a matrix it has outer * rows rows.
struct RowParts {
  int64_t outer = 1;
  int64_t columns = 1;
  std::vector<int64_t> lengths;

  int64_t rows() const;
  // Returns the RowParts of an all-gather with this operand shape, or of a reduce-scatter with this
  // result shape, on one rank.
  static RowParts of(const Instruction& collective, const std::vector<int64_t>& part);
};

// One of the pieces, which has a collective of its own.
struct RowPiece {
  std::vector<mesh::Range> rows;  // of the matrix, in the order of the piece's flat image
  std::vector<int64_t> lengths;   // rows of each rank's part
  int64_t in_image = 0;           // rows before it, where the pieces' images are consecutive
  int64_t in_part = 0;            // rows before it, of this rank's part

  int64_t count() const;
};

// Cuts into at most `slices` pieces: ranges of the outer dim, whose rows are consecutive and whose
// parts need packing, or, if its size is 1, ranges of each rank's part. Fewer than two pieces: it
// cannot be cut. `index` is the rank's in its group.
std::vector<RowPiece> cut_rows(const RowParts& parts, int64_t slices, int64_t index);

}  // namespace perigee::compile
