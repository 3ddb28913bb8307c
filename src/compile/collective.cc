#include "compile/collective.h"

#include <algorithm>

#include "mesh/placement.h"

namespace perigee::compile {

namespace {

// Elements of each rank's contribution that are under way at a time.
constexpr int64_t kPiece = 64 << 10;

// Of a ragged mesh: "0,2" are all ranks of these stages, "0.1>1.0/..." a rank of each.
std::vector<int64_t> ranks_of_stages(const mesh::Mesh& mesh, const std::string& text) {
  std::vector<int64_t> ranks;
  for (size_t at = 0; at < text.size() && text[at] != '/';) {
    size_t used = 0;
    const auto all = mesh::ranks_of_stage(mesh, std::stoll(text.substr(at), &used));
    at += used;
    if (at < text.size() && text[at] == '.') {
      ranks.push_back(all.at(static_cast<size_t>(std::stoll(text.substr(at + 1), &used))));
      at += used + 1;
    } else {
      ranks.insert(ranks.end(), all.begin(), all.end());
    }
    if (at < text.size() && text[at] != '/') ++at;  // '>' or ','
  }
  return ranks;
}

}  // namespace

std::vector<int64_t> ranks_of(const mesh::Mesh& mesh, const std::string& stream, int64_t rank) {
  const auto colon = stream.find(':');
  if (colon == std::string::npos) {
    return mesh::group_of(mesh, mesh::split_axes(stream.substr(0, stream.find('#'))), rank);
  }
  if (mesh.is_ragged()) return ranks_of_stages(mesh, stream.substr(colon + 1));
  const std::vector<std::string> axis = {stream.substr(0, colon)};
  const auto all = mesh::group_of(mesh, axis, rank);
  std::vector<int64_t> ranks;
  for (size_t at = colon + 1; at < stream.size() && stream[at] != '/';) {
    size_t used = 0;
    ranks.push_back(all.at(static_cast<size_t>(std::stoll(stream.substr(at), &used))));
    at += used;
    if (at < stream.size() && stream[at] != '/') ++at;  // '>' or ','
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
