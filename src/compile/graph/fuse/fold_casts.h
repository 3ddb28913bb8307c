// Additions and norms that read or make tensors of two types.
#pragma once

#include "graph/graph.h"

namespace perigee::compile {

// Lets ops that compute in float32 read and make tensors of a low precision without casts of their own:
// - aten::add.Tensor a summand (with `summands`), beside another in float32,
// - norms (aten::native_layer_norm, perigee::rms_norm) the result, where nothing but casts reads it,
// - gradients of norms their upstream gradient.
// A cast to float32 must have one reader. No number changes.
graph::Graph fold_casts(graph::Graph graph, bool summands = true);

}  // namespace perigee::compile
