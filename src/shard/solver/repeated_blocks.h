// Finds blocks that repeat ("blocks.0", "blocks.1", ...): their nodes are identical.
#pragma once

#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "shard/solver/sharding_options.h"

namespace perigee::shard {

// Returns the block of a scope, up to its first number: "blocks.3" of "blocks.3.attn". "": none.
std::string_view block_of(std::string_view scope);

// Returns for each value the first node that reads it; 0 if none does.
std::vector<size_t> first_readers(const graph::Graph& graph);

// Returns the representative of each node. Modules are identical if their scopes differ in one
// number only and their nodes have pairwise the same ops, phases, types and sharding options. Each
// of the first `period` identical modules represents every `period`-th one after it; all other
// nodes represent themselves.
std::vector<size_t> find_representatives(const graph::Graph& graph,
                                         const ShardingOptions& node_options, size_t period);

}  // namespace perigee::shard
