// Changes a tensor's placements: finds the cheapest sequence of collectives between two placements
// over several mesh axes.
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

// One collective or local op: changes the placements on `axes` together from one kind to another.
struct RedistributeStep {
  enum class Kind : uint8_t {
    all_reduce,      // Partial -> Replicate
    reduce_scatter,  // Partial -> Shard(dim)
    all_gather,      // Shard(dim) -> Replicate
    all_to_all,      // Shard(from_dim) -> Shard(dim)
    slice,           // Replicate -> Shard(dim), local
    zigzag,          // reorders a whole dim into zigzag order, local
    restore,         // reorders it back, local
    // Replicate -> Partial, local: the first rank of the group keeps the value, others have zeros
    part,
  };
  Kind kind;
  std::vector<int> axes;  // ascending
  int dim = -1;
  int from_dim = -1;
  mesh::Reduce reduce = mesh::Reduce::sum;
  mesh::Placements after;
  // The global shape that the step works on, to which its dims and placements refer: a dim cut in
  // runs appears as two dims [size / run, run], one cut zigzag in the order of its shards.
  mesh::Placements before = {};
  std::vector<int64_t> shape = {};
  int64_t ranks = 0;  // zigzag, restore: ranks of the axis
};

struct RedistributePath {
  std::vector<RedistributeStep> steps;
  // Bytes that a rank moves plus kLatency for each collective; infinite, without steps, if the plan
  // forbids every path.
  double cost = 0;
};

// Finds and caches paths on one mesh.
class Redistributor {
 public:
  // Fixed cost of a collective, in bytes moved.
  static constexpr double kLatency = 1024;
  // Cost of a byte read or written locally, in bytes moved.
  static constexpr double kLocal = 1e-4;

  // Returns the tensor's bytes for the cost. An eight-bit float counts as the float32 it was
  // rounded from: otherwise its factors would be so cheap to gather that every rank computed the
  // same product.
  static double bytes_of(const graph::TensorType& type) {
    const bool narrow = graph::is_floating(type.dtype) && graph::size_of(type.dtype) == 1;
    return static_cast<double>(narrow ? 4 * type.bytes() : type.bytes());
  }

  // `whole`: the pipeline axis, on which no path shards anything; "" for none. `forbidden`:
  // plan::Plan::forbidden; paths take no forbidden step over several ranks.
  explicit Redistributor(const mesh::Mesh& mesh, std::string_view whole = "",
                         const std::vector<std::string>& forbidden = {});

  // Returns the cheapest path for a tensor of that type. Axes of size 1 cost as size 2, so that the
  // choice does not depend on the size. Throws Error for runs and zigzags that do not divide the
  // tensor (mesh::runs_divide).
  const RedistributePath& path(const graph::TensorType& type, const mesh::Placements& from,
                               const mesh::Placements& to);

  double group_size(const std::vector<int>& axes) const;

 private:
  RedistributePath whole_path(const graph::TensorType& type, const mesh::Placements& from,
                              const mesh::Placements& to) const;
  RedistributePath search(const graph::TensorType& type, const mesh::Placements& from,
                          const mesh::Placements& to) const;

  bool allows(RedistributeStep::Kind kind, const std::vector<int>& axes) const;

  const mesh::Mesh& mesh_;
  int whole_ = -1;
  bool gathers_ = true, exchanges_ = true;  // whether all-gather and all-to-all are allowed
  std::unordered_map<std::string, RedistributePath> paths_;
};

// Emits the steps of `path` on `rank` after the local value. Returns the value with placements
// `to`. `consumer`: the node that reads it; gives scope and phase.
graph::ValueId emit_path(graph::Graph& local, graph::ValueId value, const RedistributePath& path,
                         const graph::TensorType& global, const mesh::Placements& to,
                         const mesh::Mesh& mesh, int64_t rank, const graph::Node& consumer);

}  // namespace perigee::shard
