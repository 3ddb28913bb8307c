// Additions, norms and rotary positions that read or make tensors of two types.
#pragma once

#include <cstdint>

#include "graph/graph.h"

namespace perigee::compile {

// The additions whose summands lose their casts: none, all, or all but those that make a gradient of
// a parameter, whose summands split_gradients gives to the step one by one.
enum class FoldedSummands : uint8_t { none, of_values, all };

// Lets ops that compute in float32 read and make tensors of a low precision without casts of their own:
// - aten::add.Tensor a summand, beside another in float32,
// - norms (aten::native_layer_norm, perigee::rms_norm) the result, where nothing but casts reads it,
// - gradients of norms their upstream gradient,
// - rotary positions (perigee::rotary and its gradient) operand and result, where only casts read it.
// A cast to float32 must have one reader. No number changes.
graph::Graph fold_casts(graph::Graph graph, FoldedSummands summands = FoldedSummands::all);

}  // namespace perigee::compile
