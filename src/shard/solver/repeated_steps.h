// Finds the steps of an unrolled loop, as of a recurrent layer over a sequence: runs of nodes that
// repeat one after the other.
#pragma once

#include <cstddef>
#include <vector>

#include "graph/graph.h"
#include "shard/solver/sharding_options.h"

namespace perigee::shard {

// `kinds`: a number for each node, equal for nodes that may represent each other. Returns for each
// node the node at its place in the first of four or more repeated steps, and the node itself
// outside of steps. The steps that cover the most nodes are found first, with the shortest
// period of these; then those before, after, and within the first of them.
std::vector<size_t> find_repeated_steps(const std::vector<int>& kinds);

// Lets the nodes of the first step represent those of the later ones. Steps are identical if their
// nodes have pairwise the same scopes, ops, phases, types and sharding options. `representative`:
// of each node, as find_representatives returns it.
void fold_repeated_steps(const graph::Graph& graph, const ShardingOptions& node_options,
                         std::vector<size_t>& representative);

}  // namespace perigee::shard
