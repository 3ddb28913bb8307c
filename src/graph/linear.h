// Linear layers in a captured graph.
#pragma once

#include "graph/graph.h"

namespace perigee::graph {

// Returns whether the node of the forward pass adds the bias of a linear layer: a parameter of one
// dim to the result of aten::mm or aten::bmm of the same scope, also through views. C++'s
// torch::nn::functional::linear gives such nodes for inputs of more than two dims.
bool adds_bias(const Graph& graph, const Node& node);

}  // namespace perigee::graph
