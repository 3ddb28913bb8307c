// The loss of a model in 16 bits, in float32.
#pragma once

#include "graph/graph.h"

namespace perigee::compile {

// Returns the graph with a loss of bfloat16 or float16 replaced by one of float32: the casts, sums,
// means and arithmetic of scalars that lead to it are computed a second time, in float32, from the
// losses of the samples, and cross entropy gives these in float32. The loss is then accumulated over
// microbatches and ranks in float32, too. Gradients and all other values stay as they are. Values
// keep their numbers; the new nodes follow the loss's own.
graph::Graph widen_loss(graph::Graph graph);

}  // namespace perigee::compile
