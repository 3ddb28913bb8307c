// plan/fp8.h carried out: the factors of linear layers' products are rounded to eight bits.
#pragma once

#include "compile/compile.h"
#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::compile {

// Histories of largest magnitudes are buffers of this prefix in the graph, new values of which are
// outputs, and states of the program under the same names: "fp8:SCOPE.K.input", .weight, .gradient
// for the K-th product with a parameter in a scope.
inline constexpr const char* kFp8History = "fp8:";

// Rounds both factors of each product with a parameter, forward and backward, on the whole graph,
// so that ranks agree on largest magnitudes wherever tensors lie. A weight or an input is rounded
// again for the backward pass: what is kept until then is what was kept before. Values keep their
// numbers, new ones come behind. An evaluation reads histories and does not change them. Throws
// Error for delayed scaling in a pipeline.
graph::Graph round_to_fp8(const graph::Graph& graph, const plan::Plan& plan, const StepSpec& spec);

}  // namespace perigee::compile
