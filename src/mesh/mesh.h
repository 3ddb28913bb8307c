// The device mesh: named axes over ranks. The first axis listed varies fastest over ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/axis_set.h"

namespace perigee::mesh {

struct Axis {
  std::string name;
  int64_t size = 1;
  bool operator==(const Axis&) const = default;
};

// Axes of size 1 are kept. `order` lists the ranks to use, as many as there are; empty is 0,
// 1, 2, ...
struct Mesh {
  std::vector<Axis> axes;
  std::vector<int64_t> order;
  // Submeshes of unequal sizes: for each position of the last axis (a pipeline's stages) the sizes
  // that the axes before it have there; the size of an axis is then the largest of these. Ranks are
  // listed submesh by submesh. Empty: the mesh is a rectangle.
  std::vector<std::vector<int64_t>> stages;

  bool is_ragged() const { return !stages.empty(); }
  int64_t size() const;
  // Returns the axis's position, or -1.
  int find(std::string_view axis) const;
  // Returns the axis's size, of a ragged mesh the largest; 1 for an axis that the mesh lacks.
  int64_t size_of(std::string_view axis) const;
  bool operator==(const Mesh&) const = default;
};

// Throws Error when an axis has no proper name (letters, digits, _), a name twice or a size below
// 1, when there are more than 2^20 ranks, when `order` does not list as many distinct ranks >= 0,
// or when there is not one submesh for each position of the last axis, when submeshes do not match
// `axes`, or when all are identical.
void verify(const Mesh& mesh);

// Throws Error where `order` holds a rank that is not below `ranks`.
void verify_ranks(const Mesh& mesh, int64_t ranks);

// Returns the mesh of these submeshes, each a list of axes, one after the other on the axis
// `outer`. Axes are in the order in which submeshes first name them; an axis that a submesh leaves
// out has one rank there. A rectangle where all submeshes are identical. Throws Error; the result
// is verified.
Mesh join(const std::vector<std::vector<Axis>>& submeshes, std::string outer);

// Returns all ranks in mesh order.
std::vector<int64_t> ranks(const Mesh& mesh);

// Returns the rank's position on the last axis.
int64_t stage_of(const Mesh& mesh, int64_t rank);

// Returns the ranks at a position of the last axis, in mesh order.
std::vector<int64_t> ranks_of_stage(const Mesh& mesh, int64_t stage);

// Returns the rectangular mesh in which all stages have the sizes of this one. Its ranks keep their
// positions; other stages have numbers that no rank has. A rectangular mesh is returned unchanged.
Mesh of_stage(const Mesh& mesh, int64_t stage);
// Returns of_stage for the rank's own stage.
Mesh of_rank(const Mesh& mesh, int64_t rank);

// Parses "tensor=2,pipe=2,data=2", or submeshes on the axis `pipe`: "data=2|tensor=2". Throws
// Error; the result is verified.
Mesh parse_axes(std::string_view text);

// Parses "0,4,1,5", the ranks of Mesh::order.
std::vector<int64_t> parse_order(std::string_view text);

// Returns the rank's position on each axis. Throws Error when the mesh does not use the rank.
std::vector<int64_t> coordinates(const Mesh& mesh, int64_t rank);

// Returns the groups over one or several axes (any order of names): every group lists its ranks in
// mesh order; groups are sorted by position on the remaining axes, the first fastest. A ragged mesh
// has groups over axes before the last one, within each submesh, and the group of all axes. Throws
// Error for an axis that the mesh lacks, and for other axes of a ragged mesh.
std::vector<std::vector<int64_t>> groups(const Mesh& mesh, std::span<const std::string> axes);

// Returns the one group over `axes` that holds the rank. Throws Error when the mesh does
// not use it.
std::vector<int64_t> group_of(const Mesh& mesh, std::span<const std::string> axes, int64_t rank);

// Returns the kind of an axis: its name without the number that distinguishes axes of one kind
// ("tensor" of tensor2).
std::string_view kind_of(std::string_view axis);

// Returns the axes of a kind, in the mesh's order; the kind itself where the mesh has none.
std::vector<std::string> axes_of_kind(const Mesh& mesh, std::string_view kind);

// Returns how many ranks a group over these axes has: of a ragged mesh the most. An axis that the
// mesh lacks counts as one.
int64_t group_size(const Mesh& mesh, std::span<const std::string> axes);

// The same functions for sets of axes.
std::vector<std::vector<int64_t>> groups(const Mesh& mesh, const AxisSet& axes);
std::vector<int64_t> group_of(const Mesh& mesh, const AxisSet& axes, int64_t rank);
int64_t group_size(const Mesh& mesh, const AxisSet& axes);

}  // namespace perigee::mesh
