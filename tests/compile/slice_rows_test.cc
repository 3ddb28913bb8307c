#include "compile/overlap/slice_rows.h"

#include <rapidcheck/catch.h>

#include <catch2/catch.hpp>

using namespace perigee::compile;

TEST_CASE("slices have each row once, in the order of every rank's part") {
  rc::prop("of any parts, rows and slices", [] {
    const auto outer = *rc::gen::inRange<int64_t>(1, 5);
    const auto ranks = *rc::gen::inRange<int64_t>(1, 6);
    const auto shortest = *rc::gen::inRange<int64_t>(1, 7);
    const auto longer = *rc::gen::inRange<int64_t>(0, ranks);
    const auto slices = *rc::gen::inRange<int64_t>(2, 6);
    RowParts parts{.outer = outer, .columns = 3, .lengths = {}};
    for (int64_t r = 0; r < ranks; ++r) parts.lengths.push_back(shortest + (r < longer ? 1 : 0));
    const int64_t each = parts.rows() / outer;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      // The rank's rows of the matrix, in the order of its part.
      std::vector<int64_t> wanted, seen(parts.rows());
      int64_t begin = 0;
      for (int64_t r = 0; r < rank; ++r) begin += parts.lengths[r];
      for (int64_t o = 0; o < outer; ++o) {
        for (int64_t k = 0; k < parts.lengths[rank]; ++k) wanted.push_back(o * each + begin + k);
      }
      const auto pieces = cut_rows(parts, slices, rank);
      RC_ASSERT(std::ssize(pieces) == std::min(slices, outer > 1 ? outer : shortest));
      std::vector<int64_t> own;
      int64_t image = 0;
      for (const auto& piece : pieces) {
        RC_ASSERT(piece.in_image == image);
        RC_ASSERT(piece.in_part == std::ssize(own));
        int64_t rows = 0;
        for (const auto& range : piece.rows) {
          rows += range.length;
          for (int64_t k = 0; k < range.length; ++k) ++seen[range.begin + k];
        }
        RC_ASSERT(rows == piece.count());
        image += rows;
        if (outer > 1) {  // sliced by outer index: each slice has whole parts
          const int64_t first = piece.rows[0].begin / each;
          for (int64_t o = first; o < first + piece.count() / each; ++o) {
            for (int64_t k = 0; k < parts.lengths[rank]; ++k) own.push_back(o * each + begin + k);
          }
        } else {
          RC_ASSERT(piece.rows[rank].length == piece.lengths[rank]);
          for (int64_t k = 0; k < piece.lengths[rank]; ++k) {
            own.push_back(piece.rows[rank].begin + k);
          }
        }
      }
      RC_ASSERT(own == wanted);
      RC_ASSERT(seen == std::vector<int64_t>(parts.rows(), 1));
    }
  });
}

TEST_CASE("row parts are read from the attributes of a gather") {
  Instruction gather{.op = "comm::all_gather",
                     .args = {{"dim", int64_t{1}}, {"counts", std::vector<int64_t>{24, 12}}}};
  const auto parts = RowParts::of(gather, {2, 2, 6});
  CHECK(parts.outer == 2);
  CHECK(parts.columns == 6);
  CHECK(parts.lengths == std::vector<int64_t>{2, 1});
  CHECK(parts.rows() == 6);
  CHECK(cut_rows({.outer = 1, .columns = 1, .lengths = {1, 1}}, 4, 0).size() ==
        1);  // too few rows for two slices
}
