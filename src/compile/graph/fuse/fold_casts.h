// Additions of tensors of two types.
#pragma once

#include "graph/graph.h"

namespace perigee::compile {

// Lets aten::add.Tensor read a summand in a low precision, rather than a cast of it to float32 that
// nothing else reads. The other summand and the sum are float32; no number changes.
graph::Graph fold_casts(graph::Graph graph);

}  // namespace perigee::compile
