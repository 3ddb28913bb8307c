// Chooses sharding, parameter storage, recomputation and offload of each block of a model together,
// under a memory limit for each stage. The candidate shardings are optimal at some price of memory,
// with repeated blocks folded into two (assignment.h); each block chooses its own candidate, and
// each stage of a pipeline is a problem of its own on its submesh (as in Alpa, Zheng et al. 2022).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
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
  // The axis whose ranks average gradients ("": none), and the price of a byte moved over it, in
  // bytes moved over the planned axes.
  std::string storage_axis = {};
  double storage_byte = 1;
  bool store = true;  // these ranks may store parameters in shards
  // Settings of all blocks that other methods fix: the level of storage, and recomputation.
  std::optional<int> storage_level = {};
  bool recompute_all = false;
  double host_byte = 18;  // price of a byte copied to or from host memory
  bool recompute = true;  // blocks may be recomputed
  bool offload = true;    // saved activations may be offloaded to the host
  std::function<bool(const graph::Input&)> trains;  // whether a parameter is trained
  // A pipeline: the stage of each node, and each stage's microbatches in flight. Empty: one stage.
  std::vector<int> stages = {};
  std::vector<double> in_flight = {};
};

// The settings of a block on a stage. `scope`: "" for the stage's nodes outside all blocks.
struct BlockSetting {
  std::string scope;
  int stage = 0;
  int storage_level = 0;  // plan::Unit::level; 0: replicated
  bool recompute = false, offload = false;
  bool operator==(const BlockSetting&) const = default;
};

// Consecutive stages of BlockPlanOptions on the ranks of one submesh, and their number of
// microbatches in flight.
struct StageRange {
  int first = 0, last = 0;
  double in_flight = 1;
};

// The choice for these stages. `options`: of each of their groups of nodes, by group.
struct StageChoice {
  StageRange range;
  std::map<int, int> options;
  // Cost of a microbatch on a rank, in bytes moved; peak memory in bytes; lower bound on the cost.
  double cost = 0, memory = 0, bound = 0;
  double transient = 0;  // bytes: the part of `memory` that one op holds
};

struct BlockPlan {
  std::vector<mesh::Placements> placements;  // per value, on the planned axes
  std::vector<int> stage_of;                 // per value
  std::vector<BlockSetting> blocks;
  std::map<std::string, int> stored_with;  // by parameter: index into blocks
  std::vector<StageChoice> stages;
  // Of the slowest stage, and the highest peak: as in StageChoice.
  double cost = 0, memory = 0, bound = 0;

  // Returns the cost of a step of so many microbatches, without the schedule's other idle time.
  double step_cost(double microbatches) const;
};

class SubmeshPlanner;

class BlockPlanner {
 public:
  // Finds the candidates of each block on each of the plan's submeshes. All references must outlive
  // this. Throws Error if the graph cannot be sharded over the axes.
  BlockPlanner(const graph::Graph& graph, const plan::Plan& plan, std::vector<int> axes,
               const BlockPlanOptions& options);
  ~BlockPlanner();

  // Returns the cheapest plan in which no stage needs more than `memory` bytes as estimated here
  // (nothing: no limit), or nothing if none fits.
  std::optional<BlockPlan> fit(std::optional<double> memory) const;
  // The same with a limit for each stage: `factor` times the estimate of the least that it needs.
  std::optional<BlockPlan> fit_least(double factor) const;
  // Returns an estimate of the least memory that any plan needs on a rank, in bytes.
  double least_memory() const;

 private:
  StageRange range_of(int stage) const;
  std::optional<BlockPlan> fit_stages(
      const std::function<std::optional<double>(int)>& limit_of) const;

  const graph::Graph& graph_;
  const std::vector<int> axes_;
  const BlockPlanOptions options_;
  std::vector<std::unique_ptr<plan::Plan>> plans_;         // by distinct submesh
  std::vector<std::unique_ptr<SubmeshPlanner>> planners_;  // by distinct submesh
  std::vector<size_t> planner_of_;                         // by stage
};

}  // namespace perigee::shard
