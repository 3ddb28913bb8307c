#include "plan/units.h"

#include <algorithm>

#include "base/error.h"

namespace perigee::plan {
namespace {

int64_t count(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (auto size : shape) n *= size;
  return n;
}

// The rank's position among the ranks of the axes, as collectives count it.
int64_t index_in_group(const mesh::Mesh& mesh, const mesh::AxisSet& axes, int64_t rank) {
  const auto group = mesh::group_of(mesh, axes, rank);
  return std::find(group.begin(), group.end(), rank) - group.begin();
}

mesh::AxisSet sharded_on(const mesh::Mesh& mesh, const mesh::Placements& placements) {
  mesh::AxisSet axes;
  for (size_t a = 0; a < placements.size(); ++a) {
    if (mesh.axes[a].size < 2 || !placements[a].is_shard()) continue;
    axes.insert(mesh.axes[a].name);
  }
  return axes;
}

// Appends the boxes of [begin, end) of the row-major subtensor at the positions `fixed` of the
// leading dims.
void add_boxes(const std::vector<int64_t>& shape, std::vector<mesh::Range>& fixed, int64_t begin,
               int64_t end, std::vector<std::vector<mesh::Range>>& out) {
  if (begin == end) return;
  const size_t dim = fixed.size();
  if (dim == shape.size()) {  // a scalar
    out.push_back(fixed);
    return;
  }
  const int64_t row = count({shape.begin() + static_cast<ptrdiff_t>(dim) + 1, shape.end()});
  const auto whole_rows = [&](int64_t first, int64_t last) {
    if (first == last) return;
    auto box = fixed;
    box.push_back({first, last - first});
    for (size_t d = dim + 1; d < shape.size(); ++d) box.push_back({0, shape[d]});
    out.push_back(std::move(box));
  };
  const auto within = [&](int64_t at, int64_t from, int64_t to) {
    fixed.push_back({at, 1});
    add_boxes(shape, fixed, from, to, out);
    fixed.pop_back();
  };
  int64_t first = begin / row;
  const int64_t last = end / row;
  if (begin % row != 0) {
    within(first, begin % row, std::min(row, end - first * row));
    ++first;
  }
  if (first <= last) {
    whole_rows(first, last);
    if (end % row != 0) within(last, 0, end % row);
  }
}

}  // namespace

int64_t FlatUnit::held() const { return std::clamp<int64_t>(elements - begin, 0, part); }

std::vector<int64_t> FlatPiece::shape() const {
  std::vector<int64_t> sizes;
  for (const auto& range : ranges) sizes.push_back(range.length);
  return sizes;
}

std::vector<std::vector<mesh::Range>> boxes(const std::vector<int64_t>& shape, int64_t begin,
                                            int64_t end) {
  std::vector<std::vector<mesh::Range>> out;
  std::vector<mesh::Range> fixed;
  add_boxes(shape, fixed, begin, end, out);
  return out;
}

bool stores_parts(const Plan& plan, const Unit& unit) {
  const auto& precision = plan.precision;
  return unit.level == 3 || (precision.dtype && precision.scopes.empty() &&
                             precision.parameters == Precision::Parameters::masters);
}

std::string_view why_no_one_copy(const Plan& plan, int level) {
  if (level == 3) return "they store them in parts";
  if (stores_parts(plan, {.level = level})) return "they store half's masters in parts";
  if (plan.precision.keep_weights) return "each keeps them in a low precision, too (keep_weights)";
  if (plan.overlap.step) return "overlap.step writes weights that other ranks still read";
  if (!plan.copy_axes.empty()) return "local_sgd trains copies of the model, which differ";
  return "";
}

bool is_in_unit(const Plan& plan, const std::string& parameter) {
  return std::ranges::any_of(plan.units, [&](const Unit& unit) {
    return std::ranges::find(unit.parameters, parameter) != unit.parameters.end();
  });
}

std::vector<FlatUnit> flats(const Plan& plan, const graph::Graph& graph, int64_t rank) {
  std::vector<FlatUnit> result;
  const auto mesh = mesh::of_rank(plan.mesh, rank);
  for (const auto& unit : plan.units) {
    int64_t parts = 1;
    for (const auto& axis : unit.axes) parts *= mesh.size_of(axis);
    if (parts == 1) continue;
    const size_t first = result.size();
    for (const auto& name : unit.parameters) {
      const auto* input = graph.find_input(name);
      if (!input) continue;
      const auto& type = graph.type(input->value);
      const auto placed = plan.placements.find(name);
      const auto placements = placed == plan.placements.end() ? mesh::Placements(mesh.axes.size())
                                                              : placed->second;
      const auto shard_axes = sharded_on(mesh, placements);
      size_t f = first;
      while (f < result.size() &&
             (result[f].dtype != type.dtype || result[f].shard_axes != shard_axes)) {
        ++f;
      }
      if (f == result.size()) {
        FlatUnit flat;
        flat.unit = &unit;
        flat.name = unit.name;
        if (f > first) flat.name += "." + std::to_string(f - first);
        flat.dtype = type.dtype;
        flat.shard_axes = shard_axes;
        flat.parts = parts;
        flat.gathered_once = unit.level < 3 && flat.dtype == graph::DType::float32 &&
                             stores_parts(plan, unit);
        flat.in_parts = unit.level == 3 || flat.gathered_once;
        result.push_back(std::move(flat));
      }
      auto& flat = result[f];
      FlatUnit::Member member;
      member.name = name;
      member.shape = mesh::local_shape(type.shape, placements, mesh, rank);
      member.ranges = mesh::local_ranges(type.shape, placements, mesh, rank);
      member.offset = flat.elements;
      member.elements = count(member.shape);
      flat.elements += member.elements;
      flat.members.push_back(std::move(member));
    }
    for (size_t f = first; f < result.size(); ++f) {
      auto& flat = result[f];
      flat.part = (flat.elements + parts - 1) / parts;
      flat.begin = index_in_group(mesh, unit.axes, rank) * flat.part;
    }
  }
  return result;
}

std::vector<FlatPiece> pieces_of(const FlatUnit& flat, const FlatUnit::Member& member) {
  const int64_t begin = std::max(flat.begin, member.offset);
  const int64_t end = std::min(flat.begin + flat.part, member.offset + member.elements);
  std::vector<FlatPiece> pieces;
  int64_t offset = begin;
  if (begin >= end) return pieces;
  for (auto& box : boxes(member.shape, begin - member.offset, end - member.offset)) {
    FlatPiece piece{offset, std::move(box)};
    offset += count(piece.shape());
    for (size_t d = 0; d < piece.ranges.size(); ++d) {
      piece.ranges[d].begin += member.ranges[d].begin;
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

}  // namespace perigee::plan
