// The head of a language model: its projection to the vocabulary.
#pragma once

#include <string>

#include "graph/graph.h"

namespace perigee::methods {

// Returns the weight of the head: of the matrix products with a parameter that only the
// loss follows (no other such product), the one with the most elements. Throws Error where
// there is none.
std::string find_head(const graph::Graph& graph);

}  // namespace perigee::methods
