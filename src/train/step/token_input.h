// The model's inputs of a language model: "tokens", and those of packed documents.
#pragma once

#include <string_view>

#include "data/data.h"
#include "graph/graph.h"

namespace perigee::train {

// Returns how many ids a sample has; 0 where the model takes none.
int64_t tokens_of_sample(const graph::Graph& graph);

// Returns the rows of the smallest parameter that the ids index; `below` is 0 where they directly
// index none.
data::IdLimit id_limit(const graph::Graph& graph);

// Returns whether an op of the graph reads this data input.
bool reads_input(const graph::Graph& graph, std::string_view name);

// Throws Error where the job packs documents into samples (data.pack = "documents") and the model
// would mix them: it does not read the input "documents".
void require_document_inputs(const job::Job& job, const graph::Graph& graph);

}  // namespace perigee::train
