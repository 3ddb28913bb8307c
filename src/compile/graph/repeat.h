// Forward ops that are recomputed in the backward pass.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace perigee::compile {

struct Repeated {
  graph::Graph graph;
  std::vector<bool> copied;  // by node of the graph given
};

// Makes the backward pass read recomputed copies of the values that `repeated` marks (by value of
// the graph; each made by a forward op). The ops that make them are copied once each, in their
// order, just before the first backward op that needs them. Forward ops without other readers
// are removed.
Repeated repeat(const graph::Graph& graph, const std::vector<bool>& repeated);

}  // namespace perigee::compile
