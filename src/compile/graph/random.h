// Random numbers that do not depend on the number of microbatches.
#pragma once

#include "graph/graph.h"

namespace perigee::compile {

// Sets `batch_dim` of the local graph's random ops: the dim of their tensor along which the step's
// microbatches are consecutive, so that any number of microbatches draws the same numbers. It is
// found on the whole graph: the dim that would be sharded if the batch were.
void set_batch_dims(graph::Graph& local, const graph::Graph& whole);

}  // namespace perigee::compile
