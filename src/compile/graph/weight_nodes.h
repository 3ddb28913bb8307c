// Zero bubble's split of a backward pass (Qi et al. 2023).
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace perigee::compile {

// Returns, by node, which backward nodes only the gradients of weights need: neither what is sent
// nor what another part of the stage takes does, and they read nothing that an earlier part of the
// stage has made or reads in its backward pass, too. `part` is each node's part of the pipeline.
std::vector<bool> find_weight_nodes(const graph::Graph& graph, const std::vector<int>& part);

// Returns, by node, which of them only the gradients of these parameters need. Throws Error where
// one of them is made of what is sent.
std::vector<bool> find_deferred_nodes(const graph::Graph& graph, const std::vector<int>& part,
                                      const std::vector<std::string>& parameters);

}  // namespace perigee::compile
