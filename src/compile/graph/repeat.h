// Forward ops that run once more in the backward pass.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace perigee::compile {

struct Repeated {
  graph::Graph graph;
  std::vector<bool> copied;  // by node of the graph given
};

// Has the backward pass read copies of the values that `repeated` names (by value of the graph;
// each made by a forward op): all ops that this takes are copied just before the first backward
// op that needs one of them, each once, in their order. What only the backward pass read is then
// made there alone.
Repeated repeat(const graph::Graph& graph, const std::vector<bool>& repeated);

}  // namespace perigee::compile
