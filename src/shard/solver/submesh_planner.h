// Chooses sharding, parameter storage, recomputation and offload of each block of a stage on its
// submesh (block_planner.h). All stages with this submesh share the candidate shardings, which are
// those of the whole graph.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"
#include "shard/solver/block_planner.h"

namespace perigee::shard {

class SubmeshPlanner {
 public:
  // Finds the candidates of each block. `plan`: on the rectangular mesh that the ranks of these
  // stages see (plan::of_stage). `axes`: positions of the planned axes. All references must outlive
  // this. Throws Error if the graph cannot be sharded over the axes.
  SubmeshPlanner(const graph::Graph& graph, const plan::Plan& plan, std::vector<int> axes,
                 const BlockPlanOptions& options);
  ~SubmeshPlanner();

  // Returns the cheapest choice for the stages of at most `memory` bytes as estimated here
  // (nothing: no limit), or nothing if none fits. Redistributes of values from and to stages of
  // `decided`, which are planned here too, count in the choice and the cost; StageChoice::bound
  // leaves them out.
  std::optional<StageChoice> fit(const StageRange& range, std::optional<double> memory,
                                 std::span<const StageChoice* const> decided) const;
  // Returns an estimate of the least memory in bytes that any choice for the stages needs.
  double least_memory(const StageRange& range) const;
  // Adds the stages' blocks, parameters and placements of values to the plan, whose planned axes
  // are `axes`, a superset of this one's.
  void write(const StageChoice& choice, const std::vector<int>& axes, BlockPlan& plan) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::shard
