// How a tensor is distributed over the mesh: one placement per axis (DTensor's terms).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/mesh.h"

namespace perigee::mesh {

enum class Reduce : uint8_t { sum, average, max, min };

struct Placement {
  enum class Kind : uint8_t { replicate, shard, partial, open };
  Kind kind = Kind::replicate;
  int dim = -1;                 // shard: which dim of the tensor
  Reduce reduce = Reduce::sum;  // partial: how the ranks' tensors combine
  // shard: the dim is viewed as [size / run, run] and every run is cut evenly; 0: the dim itself
  // is cut. A dim that merges others, of which an inner one is sharded, has runs (the rows of
  // [batch * sequence, width] with the sequence sharded). Inner values of a graph only, no inputs
  // or outputs.
  int64_t run = 0;
  // shard, over n ranks: the 2n equal chunks of the dim, or of every run, are first reordered
  // (0, 2n-1, 1, 2n-2, ...), so that rank r holds chunks r and 2n-1-r and all ranks have equal work
  // under a causal mask. On one axis of a dim; not for parameters.
  bool zigzag = false;
  bool operator==(const Placement&) const = default;

  static Placement replicate() { return {}; }
  static Placement shard(int dim, int64_t run = 0, bool zigzag = false) {
    return {Kind::shard, dim, Reduce::sum, run, zigzag};
  }
  // Left to propagation: in a plan, on an axis that a pin does not restrict.
  static Placement open() { return {Kind::open, -1, Reduce::sum}; }
  static Placement partial(Reduce r = Reduce::sum) { return {Kind::partial, -1, r}; }
  bool is_replicate() const { return kind == Kind::replicate; }
  bool is_shard() const { return kind == Kind::shard; }
  bool is_partial() const { return kind == Kind::partial; }
  bool is_open() const { return kind == Kind::open; }
};

// One placement for each axis of the mesh, in its order.
using Placements = std::vector<Placement>;

// Text form: "R", "S0", "S0/8" (runs of 8), "S0z" and "S0/8z" (zigzag), "P", "P(max)", "-" (open);
// of a tensor: "S0,R". Parsing throws Error.
std::string to_string(const Placement& placement);
std::string to_string(const Placements& placements);
Placements parse_placements(std::string_view text);

// A piece of a dim: [begin, begin + length).
struct Range {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t end() const { return begin + length; }
  bool operator==(const Range&) const = default;
};

// Part `index` of `size` elements in `parts`: the first size % parts parts hold one element more.
// Parts may be empty.
Range split(int64_t size, int64_t parts, int64_t index);

// Returns the piece of every dim that `rank` holds. A dim sharded on several axes is split by the
// last of them first (it is the outermost), so that the shards of a group over several axes are in
// group order. Throws Error for shards in runs or zigzag, which are not one range.
std::vector<Range> local_ranges(const std::vector<int64_t>& shape, const Placements& placements,
                                const Mesh& mesh, int64_t rank);

// Returns the pieces of a dim of `size` elements that a range of the dim in zigzag order (over
// `ranks` ranks) consists of, chunk by chunk. Its 2 * ranks chunks are equal.
std::vector<Range> zigzag_pieces(int64_t size, int64_t ranks, Range range);

// Returns the pieces of a dim that `rank` holds, in the order in which its tensor has them: one, or
// two where it is cut zigzag. Throws Error for shards in runs.
std::vector<Range> local_pieces(const std::vector<int64_t>& shape, const Placements& placements,
                                const Mesh& mesh, int64_t rank, int dim);

// Returns whether the runs and zigzags divide the shape: the runs of a dim have one length, which
// divides it; it has at most one zigzag; all parts are equal; and the axes that cut the dim itself
// cut it between runs.
bool runs_divide(const std::vector<int64_t>& shape, const Placements& placements, const Mesh& mesh);

// Returns the rank's local shape. Throws Error where runs do not divide.
std::vector<int64_t> local_shape(const std::vector<int64_t>& shape, const Placements& placements,
                                 const Mesh& mesh, int64_t rank);

}  // namespace perigee::mesh
