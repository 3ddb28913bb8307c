// Floating-point operations and bytes of an op, for reports, MFU and estimates without
// measured times.
#pragma once

#include "graph/graph.h"

namespace perigee::graph {

// Returns the floating-point operations of one run of the node. A multiplication and an addition
// count as two. Exact for matrix products, convolutions and attention (where causal attention
// counts the half that it computes, and its backward the five products of FlashAttention), except
// that attention within documents counts as over whole sequences: an upper bound; for other ops a constant number per element: 1 pointwise and reductions, 5 softmax and cross entropy,
// 8 norms, 0 views, copies, gathers and collectives. An op not known here counts as pointwise.
double flops_of(const Graph& graph, const Node& node);

// Returns the bytes of the node's operands and results. An operand that two arguments name
// counts twice.
int64_t bytes_of(const Graph& graph, const Node& node);

}  // namespace perigee::graph
