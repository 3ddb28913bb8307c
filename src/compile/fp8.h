// plan/fp8.h carried out: the factors of linear layers' products are rounded to eight bits.
#pragma once

#include "compile/compile.h"
#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::compile {

// Histories of largest magnitudes are buffers of this prefix in the graph, new values of which are
// outputs, and states of the program under the same names: "fp8:SCOPE.K.input", .weight, .gradient
// for the K-th product with a parameter in a scope; with an interval, scales in use are, too, as
// "fp8:SCOPE.K.input.held".
inline constexpr const char* kFp8History = "fp8:";

// Rounds both factors of each product with a parameter, forward and backward, on the whole graph,
// so that ranks agree on largest magnitudes wherever tensors lie. A weight or an input is rounded
// again for the backward pass: what is kept until then is what was kept before. Where products are
// native, a matrix product whose sizes the device takes becomes aten::_scaled_mm of factors that
// are eight bits wide, and what adds a bias adds it behind that. Values keep their numbers, new
// ones come behind. An evaluation reads histories and does not change them. Throws Error for
// delayed scaling in a pipeline.
graph::Graph round_to_fp8(const graph::Graph& graph, const plan::Plan& plan, const StepSpec& spec);

// Returns where those states lie: whole on all ranks, or, where each rank goes by its own
// magnitudes, in an element for each, their first dims being the mesh's axes.
mesh::Placements place_fp8_states(const plan::Plan& plan);

// Returns the plan with these placements of the states of such a graph.
plan::Plan with_fp8_states(plan::Plan plan, const graph::Graph& rounded);

}  // namespace perigee::compile
