// How the rows of a matrix product and the parts of a collective over them are cut into the same
// pieces.
#pragma once

#include <cstdint>
#include <vector>

#include "compile/draft.h"
#include "mesh/placement.h"

namespace perigee::compile {

// What a collective gathers, or scatters sums of: [outer, rows of all parts, columns], of which
// rank r of the group has lengths[r] rows. As a matrix it has outer * rows rows.
struct RowParts {
  int64_t outer = 1;
  int64_t columns = 1;
  std::vector<int64_t> lengths;

  int64_t rows() const;
  // Returns those of an all-gather or reduce-scatter whose operand or result on one rank has this
  // shape.
  static RowParts of(const Instruction& collective, const std::vector<int64_t>& part);
};

// One of the pieces: a collective of its own.
struct RowPiece {
  std::vector<mesh::Range> rows;  // of the matrix, in the order of the piece's flat image
  std::vector<int64_t> lengths;   // rows of each rank's part
  int64_t in_image = 0;           // rows in front of it, where the pieces' images follow each other
  int64_t in_part = 0;            // rows in front of it, of this rank's part

  int64_t count() const;
};

// Cuts into at most `slices` pieces: ranges of the outer dim, whose rows follow each other and
// whose parts want packing, or, where there is one only, ranges of each rank's part. Fewer than
// two: it cannot be cut. `index` is the rank's in its group.
std::vector<RowPiece> cut_rows(const RowParts& parts, int64_t slices, int64_t index);

}  // namespace perigee::compile
