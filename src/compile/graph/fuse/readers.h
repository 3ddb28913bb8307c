// Who reads the values of a graph.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace perigee::compile {

// Returns, by value, how many operands it is, and one more for each output that it is.
std::vector<int> count_readers(const graph::Graph& graph);

}  // namespace perigee::compile
