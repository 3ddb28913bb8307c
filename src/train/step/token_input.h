// The model's input "tokens": ids of a language model.
#pragma once

#include "data/data.h"
#include "graph/graph.h"

namespace perigee::train {

// Returns how many ids a sample has; 0 where the model takes none.
int64_t tokens_of_sample(const graph::Graph& graph);

// Returns the rows of the smallest parameter that the ids index; `below` is 0 where they directly
// index none.
data::IdLimit id_limit(const graph::Graph& graph);

}  // namespace perigee::train
