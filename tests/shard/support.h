// Graphs, and texts of shardings, for tests.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"
#include "shard/partition.h"

namespace perigee::shard {

// Returns a plan for the graph with axes such as "tensor=2,data=2" and placements such as
// {{"x", "S0,R"}}.
plan::Plan plan_for(const graph::Graph& graph, std::string_view axes,
                    const std::map<std::string, std::string>& placements = {});

// Propagates and partitions for one rank.
LocalGraph local_graph(const graph::Graph& graph, const plan::Plan& plan, int64_t rank = 0);

// Returns "all_reduce(data) all_gather(data,tensor)": the collectives of the graph, in order.
std::string collectives(const graph::Graph& graph);

// Returns the text of a value's placements by its stable name.
std::string placement(const graph::Graph& graph, const Sharding& sharding, std::string_view name);

// An MLP with its backward: x [8, 4] -> fc1 [4, 6] -> relu -> fc2 [6, 4] -> mean.
graph::Graph mlp();

}  // namespace perigee::shard
