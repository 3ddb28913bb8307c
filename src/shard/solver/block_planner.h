// Chooses sharding, parameter storage, recomputation and offload of each block of a model together,
// under a memory limit. The candidate shardings are optimal at some price of memory, with repeated
// blocks folded into two (assignment.h); each block chooses its own candidate.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"
#include "shard/solver/assignment.h"
#include "shard/solver/group_memory.h"

namespace perigee::shard {

struct BlockPlanOptions {
  AssignmentOptions assignment;
  double microbatches = 1;
  double state_share = 2;  // bytes of optimizer state for each byte of a parameter
  // Ranks that average gradients, and the price of a byte moved between them, in bytes moved over
  // the planned axes.
  double storage_ranks = 1, storage_byte = 1;
  bool store = true;      // these ranks may store parameters in shards
  double host_byte = 18;  // price of a byte copied to or from host memory
  bool recompute = true;  // blocks may be recomputed
  bool offload = true;    // saved activations may be offloaded to the host
  std::function<bool(const graph::Input&)> trains;  // whether a parameter is trained
};

// The settings of a block. `scope`: "" for the nodes outside all blocks.
struct BlockSetting {
  std::string scope;
  int storage_level = 0;  // plan::Unit::level; 0: replicated
  bool recompute = false, offload = false;
  bool operator==(const BlockSetting&) const = default;
};

struct BlockPlan {
  std::vector<mesh::Placements> placements;  // per value, on the planned axes
  std::vector<BlockSetting> blocks;
  std::map<std::string, int> stored_with;  // by parameter: index into blocks
  // Cost of a microbatch on a rank, in bytes moved; peak memory in bytes; lower bound on the cost.
  double cost = 0, memory = 0, bound = 0;
};

class BlockPlanner {
 public:
  // Finds the candidates of each block. All references must outlive this. Throws Error if the graph
  // cannot be sharded over the axes.
  BlockPlanner(const graph::Graph& graph, const plan::Plan& plan, std::vector<int> axes,
               const BlockPlanOptions& options);
  ~BlockPlanner();

  // Returns the cheapest plan of at most `memory` bytes as estimated here (nothing: no limit), or
  // nothing if none fits.
  std::optional<BlockPlan> fit(std::optional<double> memory) const;
  // Returns an estimate of the least memory that any plan needs, in bytes.
  double least_memory() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::shard
