// The options of a solver: how each node of a graph may be sharded on the planned axes of the mesh,
// with its sharding on the other axes given.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"
#include "shard/partition.h"
#include "shard/propagate/matched_rules.h"
#include "shard/propagate/node_sharding.h"
#include "shard/propagate/work_cost.h"

namespace perigee::shard {

struct ShardingOption {
  NodeSharding sharding;  // on all axes; sharding.cost is its work
};

// The options of each node; replicated on the planned axes comes first if it is allowed. Equal
// nodes share their options. An option takes one of the rule's cuts on each axis if they can be
// combined. Nodes that no parameter flows into (masks, position tables) have the replicated option
// only: they are little work, which shard_replicated_work.h distributes if all readers want the
// same shard.
class ShardingOptions {
 public:
  // `base`: the sharding on the other axes.
  ShardingOptions(const graph::Graph& graph, const plan::Plan& plan, const MatchedRules& rules,
                  const Sharding& base, const std::vector<int>& axes, const WorkPrices& prices);

  const std::vector<ShardingOption>& of(size_t node) const { return lists_[list_of_[node]]; }
  // Returns equal numbers for nodes with the same options.
  int number(size_t node) const { return list_of_[node]; }
  // Returns whether a parameter flows into the node.
  bool depends(size_t node) const { return depends_[node]; }

 private:
  std::vector<std::vector<ShardingOption>> lists_;
  std::vector<int> list_of_;   // per node
  std::vector<bool> depends_;  // per node
};

}  // namespace perigee::shard
