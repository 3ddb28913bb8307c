// The device mesh: named axes over ranks. The first axis listed varies fastest over ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace perigee::mesh {

struct Axis {
  std::string name;
  int64_t size = 1;
  bool operator==(const Axis&) const = default;
};

// Axes of size 1 are kept. `order` lists the ranks to use, as many as the sizes multiply to; empty
// is 0, 1, 2, ...
struct Mesh {
  std::vector<Axis> axes;
  std::vector<int64_t> order;

  int64_t size() const;
  // Returns the axis's position, or -1.
  int find(std::string_view axis) const;
  // Returns the axis's size; 1 for an axis that the mesh lacks.
  int64_t size_of(std::string_view axis) const;
  bool operator==(const Mesh&) const = default;
};

// Throws Error when an axis has no proper name (letters, digits, _), a name twice or a size below
// 1, when there are more than 2^20 ranks, or when `order` is not as many different ranks >= 0.
void verify(const Mesh& mesh);

// Parses "tensor=2,pipe=2,data=2". Throws Error; the result is verified.
Mesh parse_axes(std::string_view text);

// Parses "0,4,1,5", the ranks of Mesh::order.
std::vector<int64_t> parse_order(std::string_view text);

// Returns the rank's position on each axis. Throws Error when the mesh does not use the rank.
std::vector<int64_t> coordinates(const Mesh& mesh, int64_t rank);

// Returns the groups over one or several axes (any order of names): every group lists its ranks in
// mesh order, groups stand with the remaining axes varying, first fastest. Throws Error for an axis
// that the mesh lacks.
std::vector<std::vector<int64_t>> groups(const Mesh& mesh, std::span<const std::string> axes);

// Returns the one group over `axes` that holds the rank. Throws Error when the mesh does not use
// it.
std::vector<int64_t> group_of(const Mesh& mesh, std::span<const std::string> axes, int64_t rank);

// Splits "data,context" into names, "" into none. Throws Error for an empty name among others.
std::vector<std::string> split_axes(std::string_view text);

}  // namespace perigee::mesh
