#include "mesh/placement.h"

#include <algorithm>
#include <charconv>

#include "base/fail.h"

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
  if (text == "-") return Placement::open();
  if (text == "P") return Placement::partial();
  for (auto reduce : {Reduce::average, Reduce::max, Reduce::min}) {
    if (text == fmt::format("P({})", name_of(reduce))) return Placement::partial(reduce);
  }
  if (text.size() > 1 && text.front() == 'S') {
    int dim = -1;
    int64_t run = 0;
    const char* end = text.data() + text.size();
    auto read = std::from_chars(text.data() + 1, end, dim);
    bool right = read.ec == std::errc() && dim >= 0;
    if (right && read.ptr != end && *read.ptr == '/') {
      read = std::from_chars(read.ptr + 1, end, run);
      right = read.ec == std::errc() && run > 0;
    }
    const bool zigzag = right && read.ptr != end && *read.ptr == 'z';
    if (right && read.ptr + (zigzag ? 1 : 0) == end) return Placement::shard(dim, run, zigzag);
  }
  fail("mesh",
       "a placement is R, S<dim>, S<dim>/<run>, S<dim>z, P, P(avg), P(max), P(min) or -, but got "
       "\"{}\"",
       text);
}

}  // namespace

std::string to_string(const Placement& placement) {
  switch (placement.kind) {
    case Placement::Kind::replicate:
      return "R";
    case Placement::Kind::shard:
      return fmt::format("S{}{}{}", placement.dim,
                         placement.run == 0 ? "" : fmt::format("/{}", placement.run),
                         placement.zigzag ? "z" : "");
    case Placement::Kind::open:
      return "-";
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

namespace {

void check(const std::vector<int64_t>& shape, const Placements& placements, const Mesh& mesh) {
  if (placements.size() != mesh.axes.size()) {
    fail("mesh", "a placement for each of the mesh's {} axes is needed, but got \"{}\"",
         mesh.axes.size(), to_string(placements));
  }
  for (size_t a = 0; a < placements.size(); ++a) {
    const int dim = placements[a].dim;
    if (placements[a].is_shard() && (dim < 0 || dim >= static_cast<int>(shape.size()))) {
      fail("mesh", "a tensor with {} dims can be sharded on those, but got {} on axis {}",
           shape.size(), to_string(placements[a]), mesh.axes[a].name);
    }
  }
}

}  // namespace

std::vector<Range> local_ranges(const std::vector<int64_t>& shape, const Placements& placements,
                                const Mesh& mesh, int64_t rank) {
  if (mesh.is_ragged()) return local_ranges(shape, placements, of_rank(mesh, rank), rank);
  check(shape, placements, mesh);
  std::vector<Range> ranges(shape.size());
  for (size_t d = 0; d < shape.size(); ++d) ranges[d] = {0, shape[d]};
  const auto position = coordinates(mesh, rank);
  for (size_t a = placements.size(); a-- > 0;) {
    if (!placements[a].is_shard()) continue;
    if (placements[a].run != 0 || placements[a].zigzag) {
      fail("mesh", "a range of a dim is one piece, but {} on axis {} cuts several",
           to_string(placements[a]), mesh.axes[a].name);
    }
    auto& range = ranges[placements[a].dim];
    const Range piece = split(range.length, mesh.axes[a].size, position[a]);
    range = {range.begin + piece.begin, piece.length};
  }
  return ranges;
}

std::vector<Range> zigzag_pieces(int64_t size, int64_t ranks, Range range) {
  const int64_t chunk = size / (2 * ranks), end = range.begin + range.length;
  std::vector<Range> pieces;
  for (int64_t at = range.begin; at < end;) {
    const int64_t place = at / chunk, inside = at % chunk;
    const int64_t of = place % 2 == 0 ? place / 2 : 2 * ranks - 1 - place / 2;
    const int64_t length = std::min(chunk - inside, end - at);
    pieces.push_back({of * chunk + inside, length});
    at += length;
  }
  return pieces;
}

std::vector<Range> local_pieces(const std::vector<int64_t>& shape, const Placements& placements,
                                const Mesh& mesh, int64_t rank, int dim) {
  if (mesh.is_ragged()) return local_pieces(shape, placements, of_rank(mesh, rank), rank, dim);
  auto plain = placements;
  int64_t ranks = 0;
  for (size_t a = 0; a < plain.size(); ++a) {
    if (plain[a].is_shard() && plain[a].dim != dim) plain[a] = Placement::replicate();
    if (!plain[a].zigzag) continue;
    ranks = mesh.axes[a].size;
    plain[a].zigzag = false;
  }
  const auto held = local_ranges(shape, plain, mesh, rank)[dim];
  return ranks == 0 ? std::vector{held} : zigzag_pieces(shape[dim], ranks, held);
}

bool runs_divide(const std::vector<int64_t>& shape, const Placements& placements,
                 const Mesh& mesh) {
  for (int64_t stage = 0; stage < std::ssize(mesh.stages); ++stage) {
    if (!runs_divide(shape, placements, of_stage(mesh, stage))) return false;
  }
  if (mesh.is_ragged()) return true;
  for (const auto& cut : placements) {
    if (!cut.is_shard() || (cut.run == 0 && !cut.zigzag)) continue;
    int64_t between = 1, within = 1, zigzags = 0;
    for (size_t a = 0; a < placements.size(); ++a) {
      const auto& p = placements[a];
      if (!p.is_shard() || p.dim != cut.dim) continue;
      if (p.zigzag && (p.run != cut.run || ++zigzags > 1)) return false;
      if (p.run != 0 && cut.run != 0 && p.run != cut.run) return false;
      (p.run == cut.run ? within : between) *= mesh.axes[a].size;
    }
    if (cut.zigzag) within *= 2;
    const int64_t run = cut.run == 0 ? shape[cut.dim] : cut.run;
    if (run == 0) continue;
    if (shape[cut.dim] % (run * between) != 0 || run % within != 0) return false;
  }
  return true;
}

std::vector<int64_t> local_shape(const std::vector<int64_t>& shape, const Placements& placements,
                                 const Mesh& mesh, int64_t rank) {
  if (mesh.is_ragged()) return local_shape(shape, placements, of_rank(mesh, rank), rank);
  check(shape, placements, mesh);
  auto local = shape;
  const auto position = coordinates(mesh, rank);
  for (size_t a = placements.size(); a-- > 0;) {
    if (!placements[a].is_shard()) continue;
    const int64_t parts = mesh.axes[a].size;
    auto& size = local[placements[a].dim];
    if (placements[a].run != 0 && (size % parts != 0 || placements[a].run % parts != 0)) {
      fail("mesh", "runs are cut into equal parts, but {} of {} elements on axis {} has {}",
           to_string(placements[a]), size, mesh.axes[a].name, parts);
    }
    size = split(size, parts, position[a]).length;
  }
  return local;
}

}  // namespace perigee::mesh
