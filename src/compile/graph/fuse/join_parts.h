// Sums of zero-padded parts as one joined tensor.
#pragma once

#include "graph/graph.h"

namespace perigee::compile {

// Replaces sums of select_backward or slice_backward whose operands fill a dim, each element once,
// by one stack or cat of the operands. So the gradients of query, key and value that were cut from
// one tensor are written once, rather than padded with zeros and added. Where a permutation alone
// reads a stack, its parts are permuted instead. Sums that others read in part stay.
graph::Graph join_parts(const graph::Graph& graph);

}  // namespace perigee::compile
