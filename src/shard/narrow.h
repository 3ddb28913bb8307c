// The second pass of propagation.
#pragma once

#include "graph/graph.h"
#include "plan/plan.h"
#include "shard/partition.h"
#include "shard/sites.h"

namespace perigee::shard {

// Goes backwards: work that runs replicated while all its users want the same shard is done on the
// shards (masks, constants, the gradient that a loss starts with).
void narrow(const graph::Graph& graph, const plan::Plan& plan, const SiteTable& sites,
            Sharding& sharding);

}  // namespace perigee::shard
