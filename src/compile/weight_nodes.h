// Zero bubble's split of a backward pass (Qi et al. 2023).
#pragma once

#include <vector>

#include "graph/graph.h"

namespace perigee::compile {

// Returns, by node, which backward nodes only the gradients of weights need: neither what is sent
// nor what another part of the stage takes does. `part` is each node's part of the pipeline.
std::vector<bool> find_weight_nodes(const graph::Graph& graph, const std::vector<int>& part);

}  // namespace perigee::compile
