// The part of a graph that computes its loss.
#pragma once

#include "graph/graph.h"

namespace perigee::shard {

// Returns the graph with only the nodes on which the loss depends. Values keep their numbers.
graph::Graph loss_alone(graph::Graph graph);

}  // namespace perigee::shard
