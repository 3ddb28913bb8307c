// The head of a language model: its projection to the vocabulary.
#pragma once

#include <string>

#include "graph/graph.h"

namespace perigee::methods {

// Returns the weight of the matrix product with a parameter that makes the most of what the loss is
// computed from, without another such product behind it. Throws Error where there is none.
std::string find_head(const graph::Graph& graph);

}  // namespace perigee::methods
