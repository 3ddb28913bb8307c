// What an op asks of a device, whatever the device: arithmetic and memory traffic, from its types
// alone. graph/flops.h counts the arithmetic; here is what a time or a choice of what to recompute
// needs beside it.
#pragma once

#include "graph/graph.h"

namespace perigee::cost {

struct Work {
  double flops = 0;  // a multiplication and an addition count as two (graph::flops_of)
  double bytes = 0;  // read from and written to memory by one kernel
  // Matrix products, convolutions and attention: their flops run on matrix units where the device
  // has them for `dtype`.
  bool matrix = false;
  graph::DType dtype = graph::DType::float32;  // that it computes in: of its first operand that is
                                               // a float, else of its result
  bool attention = false;  // matrix: one kernel of two products with a softmax between them

  bool operator==(const Work&) const = default;
};

// Returns what one run of the node asks for. Views ask for nothing. Ops that only touch a part of
// an operand (embedding, gather, slices' backward) move that part; attention moves its operands and
// results once, never the scores; an op that writes in place (a name ending in `_`) reads and
// writes what it names first. Collectives have bytes (operand and result) and no flops.
Work work_of(const graph::Graph& graph, const graph::Node& node);

}  // namespace perigee::cost
