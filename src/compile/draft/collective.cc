#include "compile/draft/collective.h"

#include <algorithm>

#include "mesh/placement.h"

namespace perigee::compile {

namespace {

// Elements of each rank's contribution that are in flight at a time.
constexpr int64_t kPiece = 64 << 10;

// Appends the ranks at an end of a stream. On a ragged mesh: the rank at End::place of the stage,
// or all its ranks; else the stage's rank in `along`, the group over the pipeline's axis.
void add_ranks(const mesh::Mesh& mesh, const std::vector<int64_t>& along, const Stream::End& end,
               std::vector<int64_t>& ranks) {
  if (!mesh.is_ragged()) {
    ranks.push_back(along.at(static_cast<size_t>(end.stage)));
    return;
  }
  const auto all = mesh::ranks_of_stage(mesh, end.stage);
  if (end.place >= 0) {
    ranks.push_back(all.at(static_cast<size_t>(end.place)));
  } else {
    ranks.insert(ranks.end(), all.begin(), all.end());
  }
}

}  // namespace

std::vector<int64_t> ranks_of(const mesh::Mesh& mesh, const Stream& stream, int64_t rank) {
  if (stream.kind == Stream::Kind::group) return mesh::group_of(mesh, stream.axes, rank);
  const auto along = mesh.is_ragged() ? std::vector<int64_t>()
                                      : mesh::group_of(mesh, stream.axes, rank);
  std::vector<int64_t> ranks;
  for (const auto stage : stream.stages) add_ranks(mesh, along, {.stage = stage}, ranks);
  if (stream.kind == Stream::Kind::message) {
    add_ranks(mesh, along, stream.from, ranks);
    add_ranks(mesh, along, stream.to, ranks);
  }
  return ranks;
}

std::vector<int64_t> part_lengths(int64_t size, int64_t ranks) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < ranks; ++i) lengths.push_back(mesh::split(size, ranks, i).length);
  return lengths;
}

bool is_outermost(const std::vector<int64_t>& shape, int64_t dim) {
  return std::all_of(shape.begin(), shape.begin() + dim, [](int64_t size) { return size == 1; });
}

int64_t workspace_elements(std::string_view op, const std::vector<int64_t>& counts) {
  if (op != "comm::reduce_scatter" || counts.size() < 2) return 0;
  const int64_t most = *std::max_element(counts.begin(), counts.end());
  return (std::ssize(counts) - 1) * std::min(most, kPiece);
}

}  // namespace perigee::compile
