// The held-out batches by their learned labels.
#pragma once

#include "data/data.h"
#include "graph/graph.h"
#include "job/job.h"

namespace perigee::train {

// Counts the learned labels of each held-out batch that a validation reads, where the loss is a mean
// over labels of tokens. `graph`: of training. Throws Error where none is learned.
void count_learned(const job::Job& job, const graph::Graph& graph, data::Validation& validation);

}  // namespace perigee::train
