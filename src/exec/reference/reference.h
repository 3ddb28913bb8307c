// The meaning of a graph: a naive interpreter on the CPU, one op at a time, every op in its
// simplest correct form. Tests compare captured graphs, partitioned graphs, programs and fast
// kernels with it.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "exec/ops/op.h"
#include "graph/graph.h"

namespace perigee::exec {

using Tensors = std::map<std::string, at::Tensor>;

// Runs the whole graph for one microbatch. `inputs` holds parameters, buffers and data by name
// (constants are in the graph). Returns "loss", "gradient:NAME", "buffer:NAME" and results by their
// own name. Throws Error naming op and scope for an input that is missing or of another type, an op
// that fails or is a collective, and a result whose type is not the declared one.
Tensors evaluate(const graph::Graph& graph, const Tensors& inputs, const Draw& draw = {});

// Returns the reference kernel of any op. Throws Error for a collective.
Kernel reference_kernel(const Op& op);

}  // namespace perigee::exec
