#include "mesh/mesh.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <unordered_set>

#include "base/fail.h"
#include "base/rank_limit.h"

namespace perigee::mesh {
namespace {

bool is_name(std::string_view text) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  if (text.empty() || !letter(text[0])) return false;
  return std::ranges::all_of(text, [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

std::vector<std::string_view> split_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

// Returns false where the text is not an integer of 64 bits.
bool parse_integer(std::string_view text, int64_t& value) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  return code == std::errc() && end == text.data() + text.size();
}

// Reads "tensor=2,data=4".
std::vector<Axis> read_axes(std::string_view text) {
  std::vector<Axis> axes;
  for (auto part : split_commas(text)) {
    const size_t equals = part.find('=');
    int64_t size = 0;
    if (equals == std::string_view::npos || !parse_integer(part.substr(equals + 1), size)) {
      fail("mesh", "axes are written like tensor=2,data=4, but got \"{}\"", part);
    }
    axes.push_back({std::string(part.substr(0, equals)), size});
  }
  return axes;
}

int64_t rank_at(const Mesh& mesh, int64_t position) {
  return mesh.order.empty() ? position : mesh.order[position];
}

int64_t position_of(const Mesh& mesh, int64_t rank) {
  if (mesh.order.empty()) {
    if (rank >= 0 && rank < mesh.size()) return rank;
  } else if (const auto found = std::ranges::find(mesh.order, rank); found != mesh.order.end()) {
    return found - mesh.order.begin();
  }
  fail("mesh", "the mesh uses {} ranks, but rank {} is not one of them", mesh.size(), rank);
}

// Returns for each axis of the mesh whether it is one of `axes`.
std::vector<bool> mark(const Mesh& mesh, std::span<const std::string> axes) {
  if (axes.empty()) fail("mesh", "a group is over at least one axis, but got none");
  std::vector<bool> in_group(mesh.axes.size());
  for (const auto& name : axes) {
    const int axis = mesh.find(name);
    if (axis < 0) {
      std::vector<std::string> names;
      for (const auto& a : mesh.axes) names.push_back(a.name);
      fail("mesh", "a group is over axes of the mesh ({}), but got \"{}\"{}",
           fmt::join(names, ", "), name, did_you_mean(name, names));
    }
    if (in_group[axis]) fail("mesh", "a group names an axis once, but got \"{}\" twice", name);
    in_group[axis] = true;
  }
  return in_group;
}

// Returns the offsets of all positions along the axes with mark[i] == wanted, first axis fastest.
std::vector<int64_t> offsets(const Mesh& mesh, const std::vector<bool>& mark, bool wanted) {
  std::vector<int64_t> out{0};
  int64_t stride = 1;
  for (size_t i = 0; i < mesh.axes.size(); ++i) {
    const int64_t size = mesh.axes[i].size;
    if (mark[i] == wanted) {
      const size_t before = out.size();
      for (int64_t k = 1; k < size; ++k) {
        for (size_t j = 0; j < before; ++j) out.push_back(out[j] + k * stride);
      }
    }
    stride *= size;
  }
  return out;
}

// The ranks of a submesh.
int64_t count(const std::vector<int64_t>& sizes) {
  int64_t n = 1;
  for (const auto size : sizes) n *= size;
  return n;
}

// Returns whether the group is within a submesh; false: it is over all axes.
bool is_within(const Mesh& mesh, const std::vector<bool>& in_group) {
  if (!in_group.back()) return true;
  for (size_t i = 0; i < in_group.size(); ++i) {
    if (in_group[i]) continue;
    fail("mesh",
         "submeshes of unequal sizes have groups within each, or one over all axes, but a group is "
         "over {} and not over {}: make the submeshes identical",
         mesh.axes.back().name, mesh.axes[i].name);
  }
  return false;
}

void verify_stages(const Mesh& mesh) {
  const auto inner = mesh.axes.size() - std::min<size_t>(1, mesh.axes.size());
  if (mesh.axes.empty() || std::ssize(mesh.stages) != mesh.axes.back().size) {
    fail("mesh",
         "a mesh needs one submesh for each of the {} positions of the last axis, but got {}",
         mesh.axes.empty() ? 0 : mesh.axes.back().size, mesh.stages.size());
  }
  std::vector<int64_t> largest(inner, 1);
  bool equal_sizes = true;
  int64_t ranks = 0;
  for (size_t s = 0; s < mesh.stages.size(); ++s) {
    const auto& sizes = mesh.stages[s];
    if (sizes.size() != inner) {
      fail("mesh", "a submesh has the sizes of {} axes, but submesh {} has {}", inner, s + 1,
           sizes.size());
    }
    int64_t product = 1;
    for (size_t i = 0; i < inner; ++i) {
      if (sizes[i] < 1) {
        fail("mesh", "the size of an axis is at least 1, but \"{}\" has {} in submesh {}",
             mesh.axes[i].name, sizes[i], s + 1);
      }
      if (sizes[i] > kMostRanks / product) {
        fail("mesh", "a mesh has at most {} ranks, but submesh {} has more", kMostRanks, s + 1);
      }
      product *= sizes[i];
      largest[i] = std::max(largest[i], sizes[i]);
    }
    ranks += product;
    equal_sizes = equal_sizes && sizes == mesh.stages.front();
  }
  if (equal_sizes) fail("mesh", "identical submeshes are a mesh without submeshes");
  if (ranks > kMostRanks)
    fail("mesh", "a mesh has at most {} ranks, but got {}", kMostRanks, ranks);
  for (size_t i = 0; i < inner; ++i) {
    if (mesh.axes[i].size == largest[i]) continue;
    fail("mesh", "an axis has the largest of its submeshes' sizes, but \"{}\" has {}, not {}",
         mesh.axes[i].name, mesh.axes[i].size, largest[i]);
  }
}

}  // namespace

int64_t Mesh::size() const {
  int64_t n = 1;
  if (is_ragged()) {
    n = 0;
    for (const auto& sizes : stages) n += count(sizes);
    return n;
  }
  for (const auto& axis : axes) n *= axis.size;
  return n;
}

int Mesh::find(std::string_view axis) const {
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].name == axis) return static_cast<int>(i);
  }
  return -1;
}

int64_t Mesh::size_of(std::string_view axis) const {
  const int i = find(axis);
  return i < 0 ? 1 : axes[i].size;
}

void verify(const Mesh& mesh) {
  int64_t ranks = 1;
  for (size_t i = 0; i < mesh.axes.size(); ++i) {
    const auto& [name, size] = mesh.axes[i];
    if (!is_name(name)) {
      fail("mesh", "an axis has a name of letters, digits and _, but got \"{}\"", name);
    }
    if (mesh.find(name) != static_cast<int>(i)) {
      fail("mesh", "axes have distinct names, but \"{}\" occurs twice", name);
    }
    if (size < 1) {
      fail("mesh", "the size of an axis is at least 1, but \"{}\" has {}", name, size);
    }
    if (size > kMostRanks / ranks) {
      fail("mesh", "a mesh has at most {} ranks, but the sizes of its axes multiply to more",
           kMostRanks);
    }
    ranks *= size;
  }
  if (mesh.is_ragged()) {
    verify_stages(mesh);
    ranks = mesh.size();
  }
  if (mesh.order.empty()) return;
  if (static_cast<int64_t>(mesh.order.size()) != ranks) {
    fail("mesh", "axes multiply to {} ranks, but got {}", ranks, mesh.order.size());
  }
  std::unordered_set<int64_t> seen;
  for (auto rank : mesh.order) {
    if (rank < 0) fail("mesh", "ranks are at least 0, but the order holds {}", rank);
    if (!seen.insert(rank).second) {
      fail("mesh", "a mesh uses a rank once, but the order holds {} twice", rank);
    }
  }
}

void verify_ranks(const Mesh& mesh, int64_t ranks) {
  for (const auto rank : mesh.order) {
    if (rank < ranks) continue;
    fail("mesh", "the order of the mesh holds rank {}, but there are ranks 0 to {} only", rank,
         ranks - 1);
  }
}

Mesh join(const std::vector<std::vector<Axis>>& submeshes, std::string outer) {
  Mesh mesh;
  for (const auto& submesh : submeshes) {
    for (size_t i = 0; i < submesh.size(); ++i) {
      const auto& [name, size] = submesh[i];
      const bool twice = std::any_of(
          submesh.begin(), submesh.begin() + static_cast<ptrdiff_t>(i),
          [&, &name = name](const Axis& axis) { return axis.name == name; });
      if (twice || name == outer) {
        fail("mesh", "a submesh names each axis once, and not the outer axis {}, but got \"{}\"",
             outer, name);
      }
      if (mesh.find(name) < 0) mesh.axes.push_back({name, size});
      auto& axis = mesh.axes[static_cast<size_t>(mesh.find(name))];
      axis.size = std::max(axis.size, size);
    }
  }
  const auto inner = mesh.axes.size();
  for (const auto& submesh : submeshes) {
    auto& sizes = mesh.stages.emplace_back(inner, 1);
    for (const auto& [name, size] : submesh) sizes[static_cast<size_t>(mesh.find(name))] = size;
  }
  mesh.axes.push_back({std::move(outer), std::max<int64_t>(1, std::ssize(submeshes))});
  const bool equal_sizes = std::all_of(
      mesh.stages.begin(), mesh.stages.end(),
      [&](const auto& sizes) { return sizes == mesh.stages.front(); });
  if (equal_sizes) mesh.stages.clear();
  verify(mesh);
  return mesh;
}

std::vector<int64_t> ranks(const Mesh& mesh) {
  if (!mesh.order.empty()) return mesh.order;
  std::vector<int64_t> all(static_cast<size_t>(mesh.size()));
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

int64_t stage_of(const Mesh& mesh, int64_t rank) {
  if (!mesh.is_ragged()) return coordinates(mesh, rank).back();
  int64_t position = position_of(mesh, rank), stage = 0;
  for (; position >= count(mesh.stages[stage]); ++stage) position -= count(mesh.stages[stage]);
  return stage;
}

std::vector<int64_t> ranks_of_stage(const Mesh& mesh, int64_t stage) {
  int64_t first = 0, size = mesh.size() / mesh.axes.back().size;
  if (mesh.is_ragged()) {
    for (int64_t s = 0; s < stage; ++s) first += count(mesh.stages[s]);
    size = count(mesh.stages[stage]);
  } else {
    first = stage * size;
  }
  std::vector<int64_t> found;
  for (int64_t k = 0; k < size; ++k) found.push_back(rank_at(mesh, first + k));
  return found;
}

Mesh of_stage(const Mesh& mesh, int64_t stage) {
  if (!mesh.is_ragged()) return mesh;
  Mesh own{mesh.axes, {}, {}};
  const auto& sizes = mesh.stages.at(static_cast<size_t>(stage));
  for (size_t i = 0; i < sizes.size(); ++i) own.axes[i].size = sizes[i];
  const auto held = ranks_of_stage(mesh, stage);
  int64_t nobody = mesh.order.empty() ? mesh.size() : std::ranges::max(mesh.order) + 1;
  for (int64_t s = 0; s < own.axes.back().size; ++s) {
    for (const auto rank : held) own.order.push_back(s == stage ? rank : nobody++);
  }
  return own;
}

Mesh of_rank(const Mesh& mesh, int64_t rank) {
  return mesh.is_ragged() ? of_stage(mesh, stage_of(mesh, rank)) : mesh;
}

Mesh parse_axes(std::string_view text) {
  if (text.find('|') == std::string_view::npos) {
    Mesh mesh{read_axes(text), {}, {}};
    verify(mesh);
    return mesh;
  }
  std::vector<std::vector<Axis>> submeshes;
  for (;;) {
    const size_t bar = text.find('|');
    submeshes.push_back(read_axes(text.substr(0, bar)));
    if (bar == std::string_view::npos) return join(submeshes, "pipe");
    text.remove_prefix(bar + 1);
  }
}

std::vector<int64_t> parse_order(std::string_view text) {
  std::vector<int64_t> order;
  for (auto part : split_commas(text)) {
    if (!parse_integer(part, order.emplace_back())) {
      fail("mesh", "an order of ranks is written like 0,4,1,5, but got \"{}\"", part);
    }
  }
  return order;
}

std::vector<int64_t> coordinates(const Mesh& mesh, int64_t rank) {
  if (mesh.is_ragged()) return coordinates(of_rank(mesh, rank), rank);
  int64_t position = position_of(mesh, rank);
  std::vector<int64_t> out;
  for (const auto& axis : mesh.axes) {
    out.push_back(position % axis.size);
    position /= axis.size;
  }
  return out;
}

std::vector<std::vector<int64_t>> groups(const Mesh& mesh, std::span<const std::string> axes) {
  const auto in_group = mark(mesh, axes);
  std::vector<std::vector<int64_t>> out;
  if (mesh.is_ragged()) {
    if (!is_within(mesh, in_group)) return {ranks(mesh)};
    for (int64_t stage = 0; stage < std::ssize(mesh.stages); ++stage) {
      const auto held = ranks_of_stage(mesh, stage);
      for (auto& group : groups(of_stage(mesh, stage), axes)) {
        if (std::ranges::find(held, group.front()) != held.end()) out.push_back(std::move(group));
      }
    }
    return out;
  }
  const auto inner = offsets(mesh, in_group, true);
  for (auto outer : offsets(mesh, in_group, false)) {
    auto& group = out.emplace_back();
    group.reserve(inner.size());
    for (auto offset : inner) group.push_back(rank_at(mesh, outer + offset));
  }
  return out;
}

std::vector<int64_t> group_of(const Mesh& mesh, std::span<const std::string> axes, int64_t rank) {
  const auto in_group = mark(mesh, axes);
  if (mesh.is_ragged()) {
    position_of(mesh, rank);
    return is_within(mesh, in_group) ? group_of(of_rank(mesh, rank), axes, rank) : ranks(mesh);
  }
  const auto at = coordinates(mesh, rank);
  int64_t outer = 0, stride = 1;
  for (size_t i = 0; i < at.size(); ++i) {
    if (!in_group[i]) outer += at[i] * stride;
    stride *= mesh.axes[i].size;
  }
  std::vector<int64_t> out;
  for (auto offset : offsets(mesh, in_group, true)) out.push_back(rank_at(mesh, outer + offset));
  return out;
}

std::string_view kind_of(std::string_view axis) {
  const auto last = axis.find_last_not_of("0123456789");
  return axis.substr(0, last == std::string_view::npos ? axis.size() : last + 1);
}

std::vector<std::string> axes_of_kind(const Mesh& mesh, std::string_view kind) {
  std::vector<std::string> names;
  for (const auto& axis : mesh.axes) {
    if (kind_of(axis.name) == kind) names.push_back(axis.name);
  }
  if (names.empty()) names.emplace_back(kind);
  return names;
}

int64_t group_size(const Mesh& mesh, std::span<const std::string> axes) {
  int64_t ranks = 1;
  for (const auto& axis : axes) ranks *= mesh.size_of(axis);
  return ranks;
}

std::vector<std::vector<int64_t>> groups(const Mesh& mesh, const AxisSet& axes) {
  return groups(mesh, std::span(axes.names()));
}

std::vector<int64_t> group_of(const Mesh& mesh, const AxisSet& axes, int64_t rank) {
  return group_of(mesh, std::span(axes.names()), rank);
}

int64_t group_size(const Mesh& mesh, const AxisSet& axes) {
  return group_size(mesh, std::span(axes.names()));
}

}  // namespace perigee::mesh
