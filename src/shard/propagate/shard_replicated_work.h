// The second pass of propagation, after placements are chosen.
#pragma once

#include "graph/graph.h"
#include "plan/plan.h"
#include "shard/partition.h"
#include "shard/propagate/matched_rules.h"

namespace perigee::shard {

// Goes backwards over the nodes: a replicated node whose users all want the same shard is computed
// on the shards (masks, constants, the gradient that a loss starts with).
void shard_replicated_work(const graph::Graph& graph, const plan::Plan& plan,
                           const MatchedRules& rules, Sharding& sharding);

}  // namespace perigee::shard
