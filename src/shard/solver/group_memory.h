// Memory of a rank by groups of nodes, for a model with given placements.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "mesh/placement.h"
#include "plan/plan.h"

namespace perigee::shard {

// Bytes on the rank that has the most. A value belongs to the group that produces it, a parameter
// to the group that reads it first.
struct GroupMemory {
  double trained = 0, frozen = 0;  // parameters
  double inner = 0;                // produced here and read by this group's own backward pass
  double read = 0;                 // produced here and read by other groups
  double working = 0;              // operands and results of the largest op
};

// Placements of a graph's values on all axes, and of the shards saved for the backward pass.
struct ValuePlacements {
  std::vector<mesh::Placements> values, saved;
};

// Returns the memory of each group. `groups`: of each node. `stages`: of each group; a value that
// another stage reads counts there, in the first group that reads it, as `read`. `trains`: whether
// a parameter is trained.
std::vector<GroupMemory> find_group_memory(const graph::Graph& graph, const mesh::Mesh& mesh,
                                           const std::vector<int>& groups,
                                           const std::vector<int>& stages,
                                           const ValuePlacements& placements,
                                           const std::function<bool(const graph::Input&)>& trains);

}  // namespace perigee::shard
