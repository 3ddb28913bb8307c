#include "compile/overlap/slice_rows.h"

#include <algorithm>
#include <numeric>

#include "compile/draft/collective.h"
#include "compile/draft/copy_parts.h"

namespace perigee::compile {

namespace {

int64_t sum(const std::vector<int64_t>& list) {
  return std::accumulate(list.begin(), list.end(), int64_t{0});
}

}  // namespace

int64_t RowParts::rows() const { return outer * sum(lengths); }

RowParts RowParts::of(const Instruction& collective, const std::vector<int64_t>& part) {
  RowParts parts;
  int64_t dim = 0;
  for (const auto& [name, arg] : collective.args) {
    if (name == "dim") dim = std::get<int64_t>(arg);
    if (name == "counts") parts.lengths = std::get<std::vector<int64_t>>(arg);
  }
  for (int64_t d = 0; d < std::ssize(part); ++d) {
    if (d < dim) parts.outer *= part[d];
    if (d > dim) parts.columns *= part[d];
  }
  const int64_t each = std::max<int64_t>(parts.outer * parts.columns, 1);
  for (auto& length : parts.lengths) length /= each;
  return parts;
}

int64_t RowPiece::count() const { return sum(lengths); }

std::vector<RowPiece> cut_rows(const RowParts& parts, int64_t slices, int64_t index) {
  std::vector<RowPiece> pieces;
  if (parts.lengths.empty()) return pieces;
  int64_t image = 0, own = 0;
  const auto add = [&](RowPiece piece) {
    piece.in_image = image;
    piece.in_part = own;
    image += piece.count();
    own += piece.lengths[index];
    pieces.push_back(std::move(piece));
  };
  if (parts.outer > 1) {
    for (int64_t outer : part_lengths(parts.outer, std::min(slices, parts.outer))) {
      RowPiece piece;
      for (int64_t length : parts.lengths) piece.lengths.push_back(outer * length);
      piece.rows = {{image, piece.count()}};
      add(std::move(piece));
    }
    return pieces;
  }
  const int64_t shortest = *std::min_element(parts.lengths.begin(), parts.lengths.end());
  const auto whole = ranges_of(parts.lengths);
  const int64_t number = std::min(slices, shortest);
  for (int64_t j = 0; j < number; ++j) {
    RowPiece piece;
    for (const auto& part : whole) {
      auto range = ranges_of(part_lengths(part.length, number))[j];
      piece.lengths.push_back(range.length);
      range.begin += part.begin;
      piece.rows.push_back(range);
    }
    add(std::move(piece));
  }
  return pieces;
}

}  // namespace perigee::compile
