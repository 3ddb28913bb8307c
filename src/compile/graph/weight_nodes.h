// Zero bubble's split of a backward pass (Qi et al. 2023).
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace perigee::compile {

// Returns, by node, whether it is a backward node that only weight gradients depend on: no message
// and no other part of the stage depends on it, and it reads no value that an earlier part of the
// stage makes or reads in its backward pass. `part`: each node's part of the pipeline.
std::vector<bool> find_weight_nodes(const graph::Graph& graph, const std::vector<int>& part);

// Returns, by node, whether only the gradients of these parameters depend on it. Throws Error where
// such a gradient depends on a message.
std::vector<bool> find_deferred_nodes(const graph::Graph& graph, const std::vector<int>& part,
                                      const std::vector<std::string>& parameters);

}  // namespace perigee::compile
