#include "mesh/mesh.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "base/error.h"

namespace perigee::mesh {
namespace {

constexpr int64_t most_ranks = int64_t{1} << 20;

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

}  // namespace

int64_t Mesh::size() const {
  int64_t n = 1;
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
      fail("mesh", "axes have names of their own, but \"{}\" is there twice", name);
    }
    if (size < 1) {
      fail("mesh", "the size of an axis is at least 1, but \"{}\" has {}", name, size);
    }
    if (size > most_ranks / ranks) {
      fail("mesh", "a mesh has at most {} ranks, but the sizes of its axes multiply to more",
           most_ranks);
    }
    ranks *= size;
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

Mesh parse_axes(std::string_view text) {
  Mesh mesh;
  for (auto part : split_commas(text)) {
    const size_t equals = part.find('=');
    int64_t size = 0;
    if (equals == std::string_view::npos || !parse_integer(part.substr(equals + 1), size)) {
      fail("mesh", "axes are written like tensor=2,data=4, but got \"{}\"", part);
    }
    mesh.axes.push_back({std::string(part.substr(0, equals)), size});
  }
  verify(mesh);
  return mesh;
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
  const auto inner = offsets(mesh, in_group, true);
  std::vector<std::vector<int64_t>> out;
  for (auto outer : offsets(mesh, in_group, false)) {
    auto& group = out.emplace_back();
    group.reserve(inner.size());
    for (auto offset : inner) group.push_back(rank_at(mesh, outer + offset));
  }
  return out;
}

std::vector<int64_t> group_of(const Mesh& mesh, std::span<const std::string> axes, int64_t rank) {
  const auto in_group = mark(mesh, axes);
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

std::vector<std::string> split_axes(std::string_view text) {
  std::vector<std::string> names;
  if (text.empty()) return names;
  for (auto part : split_commas(text)) {
    if (part.empty()) fail("mesh", "axes are written like data,context, but got \"{}\"", text);
    names.emplace_back(part);
  }
  return names;
}

}  // namespace perigee::mesh
