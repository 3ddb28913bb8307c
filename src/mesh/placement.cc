#include "mesh/placement.h"

#include <charconv>

#include "base/error.h"

namespace perigee::mesh {
namespace {

std::string_view name_of(Reduce reduce) {
  switch (reduce) {
    case Reduce::sum:
      return "sum";
    case Reduce::average:
      return "avg";
    case Reduce::max:
      return "max";
    case Reduce::min:
      return "min";
  }
  return "";
}

Placement parse_placement(std::string_view text) {
  if (text == "R") return Placement::replicate();
  if (text == "P") return Placement::partial();
  for (auto reduce : {Reduce::average, Reduce::max, Reduce::min}) {
    if (text == fmt::format("P({})", name_of(reduce))) return Placement::partial(reduce);
  }
  if (text.size() > 1 && text.front() == 'S') {
    int dim = -1;
    const char* end = text.data() + text.size();
    const auto read = std::from_chars(text.data() + 1, end, dim);
    if (read.ec == std::errc() && read.ptr == end && dim >= 0) return Placement::shard(dim);
  }
  fail("mesh", "a placement is R, S<dim>, P, P(avg), P(max) or P(min), but got \"{}\"", text);
}

}  // namespace

std::string to_string(const Placement& placement) {
  switch (placement.kind) {
    case Placement::Kind::replicate:
      return "R";
    case Placement::Kind::shard:
      return fmt::format("S{}", placement.dim);
    case Placement::Kind::partial:
      return placement.reduce == Reduce::sum ? "P"
                                             : fmt::format("P({})", name_of(placement.reduce));
  }
  return "";
}

std::string to_string(const Placements& placements) {
  std::string text;
  for (const auto& placement : placements) {
    if (!text.empty()) text += ',';
    text += to_string(placement);
  }
  return text;
}

Placements parse_placements(std::string_view text) {
  Placements placements;
  if (text.empty()) return placements;
  while (true) {
    const auto comma = text.find(',');
    placements.push_back(parse_placement(text.substr(0, comma)));
    if (comma == std::string_view::npos) return placements;
    text.remove_prefix(comma + 1);
  }
}

Range split(int64_t size, int64_t parts, int64_t index) {
  const int64_t small = size / parts;
  const int64_t larger = size % parts;
  if (index < larger) return {index * (small + 1), small + 1};
  return {larger * (small + 1) + (index - larger) * small, small};
}

std::vector<Range> local_ranges(const std::vector<int64_t>& shape, const Placements& placements,
                                const Mesh& mesh, int64_t rank) {
  if (placements.size() != mesh.axes.size()) {
    fail("mesh", "a placement for each of the mesh's {} axes is needed, but got \"{}\"",
         mesh.axes.size(), to_string(placements));
  }
  std::vector<Range> ranges(shape.size());
  for (size_t d = 0; d < shape.size(); ++d) ranges[d] = {0, shape[d]};
  const auto position = coordinates(mesh, rank);
  for (size_t a = placements.size(); a-- > 0;) {
    if (!placements[a].is_shard()) continue;
    const int dim = placements[a].dim;
    if (dim < 0 || dim >= static_cast<int>(shape.size())) {
      fail("mesh", "a tensor with {} dims can be sharded on those, but got {} on axis {}",
           shape.size(), to_string(placements[a]), mesh.axes[a].name);
    }
    const Range piece = split(ranges[dim].length, mesh.axes[a].size, position[a]);
    ranges[dim] = {ranges[dim].begin + piece.begin, piece.length};
  }
  return ranges;
}

std::vector<int64_t> local_shape(const std::vector<int64_t>& shape, const Placements& placements,
                                 const Mesh& mesh, int64_t rank) {
  std::vector<int64_t> local;
  local.reserve(shape.size());
  for (const auto& range : local_ranges(shape, placements, mesh, rank)) {
    local.push_back(range.length);
  }
  return local;
}

}  // namespace perigee::mesh
