// Arithmetic and memory traffic of an op, from its types. graph/flops.h counts the arithmetic; this
// adds the traffic and the unit that runs it.
#pragma once

#include "graph/graph.h"

namespace perigee::cost {

struct OpWork {
  double flops = 0;  // a multiplication and an addition count as two (graph::flops_of)
  double bytes = 0;  // read from and written to memory by one kernel
  // Matrix products, convolutions and attention: their flops run on matrix units where the device
  // has them for `dtype`.
  bool matrix = false;
  // Of the arithmetic: of the first floating-point operand, else of the result.
  graph::DType dtype = graph::DType::float32;
  bool attention = false;  // matrix: one fused attention kernel

  bool operator==(const OpWork&) const = default;
};

// Returns the work of one run of the node. Views have none. Ops that access a part of an operand
// (embedding, gather, backward of slices) move that part; attention moves its operands and results
// once, never the scores; an in-place op (its name ends in `_`) reads and writes its first
// operands. Collectives have bytes (operand and result) and no flops.
OpWork work_of(const graph::Graph& graph, const graph::Node& node);

}  // namespace perigee::cost
