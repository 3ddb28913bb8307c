// Blocks that repeat ("blocks.0", "blocks.1", ...), by what their nodes do.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "shard/ways.h"

namespace perigee::shard {

// Returns for each node the one that stands for it: the same node of the first module that differs
// from its own in a number alone and whose nodes, one by one, have the same ops, phases, types and
// ways; else itself.
std::vector<size_t> find_alike(const graph::Graph& graph, const Ways& ways);

}  // namespace perigee::shard
