// Blocks that repeat ("blocks.0", "blocks.1", ...), by what their nodes do.
#pragma once

#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "shard/ways.h"

namespace perigee::shard {

// Returns the block that a scope is in, "blocks.3" of "blocks.3.attn": all up to its first number.
// "": none.
std::string_view block_of(std::string_view scope);

// Returns for each value the first node that reads it; 0 where none does.
std::vector<size_t> first_readers(const graph::Graph& graph);

// Returns for each node the one that stands for it. Modules are alike that differ in a number alone
// and whose nodes, one by one, have the same ops, phases, types and ways: each of the first
// `period` of them stands for itself and for every `period`-th behind it. Other nodes stand for
// themselves.
std::vector<size_t> find_alike(const graph::Graph& graph, const Ways& ways, size_t period);

}  // namespace perigee::shard
