// Graphs for tests.
#pragma once

#include <cstdint>

#include "graph/graph.h"

namespace perigee::graph {

// Two linear layers with their backward: x -> fc1 -> relu -> fc2 -> sum. Verified.
Graph two_layers();

// A valid graph with every kind of argument, of up to `nodes` nodes, drawn from the seed.
Graph random_graph(uint64_t seed, int nodes);

// The same graph with its values numbered in another order.
Graph shuffle_values(Graph graph, uint64_t seed);

}  // namespace perigee::graph
