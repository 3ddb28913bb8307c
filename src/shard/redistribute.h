// Changing a tensor's placements: the cheapest sequence of collectives between any two, over
// several mesh axes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "mesh/mesh.h"
#include "mesh/placement.h"

namespace perigee::shard {

// One step: the placements on `axes` change from one kind to another, together.
struct Step {
  enum class Kind : uint8_t {
    all_reduce,      // Partial -> Replicate
    reduce_scatter,  // Partial -> Shard(dim)
    all_gather,      // Shard(dim) -> Replicate
    all_to_all,      // Shard(from_dim) -> Shard(dim)
    slice,           // Replicate -> Shard(dim), local
    zigzag,          // a dim that is whole is put into the order of zigzag shards, local
    restore,         // and back
    part,  // Replicate -> Partial, local: a sum's value stays on the first rank of the group
  };
  Kind kind;
  std::vector<int> axes;  // ascending
  int dim = -1;
  int from_dim = -1;
  mesh::Reduce reduce = mesh::Reduce::sum;
  mesh::Placements after;
  // The global shape that the step sees: a dim cut in runs as two dims, [size / run, run], and one
  // cut zigzag in the order of its shards. Placements and dims of the step are of it.
  mesh::Placements before = {};
  std::vector<int64_t> shape = {};
  int64_t ranks = 0;  // zigzag, restore: of the axis
};

struct Path {
  std::vector<Step> steps;
  // Bytes that a rank moves, plus a fixed charge for each collective; infinite, without steps,
  // where what is forbidden leaves no way.
  double cost = 0;
};

// Finds and remembers paths on one mesh.
class Redistributor {
 public:
  // What a collective costs beside its bytes, in bytes.
  static constexpr double kLatency = 1024;
  // What a local byte costs, in bytes moved.
  static constexpr double kLocal = 1e-4;

  // Returns the bytes of a tensor that count. An eight-bit float counts as what it was rounded
  // from, float32: products are shared out among ranks as they would be without it, since factors
  // that are cheap to gather would have all ranks multiply the same.
  static double bytes_of(const graph::TensorType& type) {
    const bool narrow = graph::is_floating(type.dtype) && graph::size_of(type.dtype) == 1;
    return static_cast<double>(narrow ? 4 * type.bytes() : type.bytes());
  }

  // On `whole`, an axis of a pipeline, nothing is ever sharded, not on the way either: "" for none.
  // `forbidden`: plan::Plan::forbidden, of which steps over several ranks are not taken.
  explicit Redistributor(const mesh::Mesh& mesh, std::string_view whole = "",
                         const std::vector<std::string>& forbidden = {});

  // Returns the cheapest path for a tensor of that type. Axes of size 1 count as size 2 in costs,
  // so that a plan chooses alike for any size. Throws Error for runs and zigzags that the tensor
  // cannot be cut in (mesh::runs_divide).
  const Path& path(const graph::TensorType& type, const mesh::Placements& from,
                   const mesh::Placements& to);

  double group_size(const std::vector<int>& axes) const;

 private:
  Path whole_path(const graph::TensorType& type, const mesh::Placements& from,
                  const mesh::Placements& to) const;
  Path search(const graph::TensorType& type, const mesh::Placements& from,
              const mesh::Placements& to) const;

  bool allows(Step::Kind kind, const std::vector<int>& axes) const;

  const mesh::Mesh& mesh_;
  int whole_ = -1;
  bool gathers_ = true, exchanges_ = true;  // steps that are allowed
  std::unordered_map<std::string, Path> paths_;
};

// Emits the steps of `path`, which leads to `to`, on `rank` behind the local value. Returns the
// value that lies so.
graph::ValueId emit_path(graph::Graph& local, graph::ValueId value, const Path& path,
                         const graph::TensorType& global, const mesh::Placements& to,
                         const mesh::Mesh& mesh, int64_t rank, const graph::Node& consumer);

}  // namespace perigee::shard
