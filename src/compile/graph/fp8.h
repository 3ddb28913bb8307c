// Applies plan/fp8.h: the factors of linear layers' products are rounded to eight bits.
#pragma once

#include "compile/compile.h"
#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::compile {

// Histories of largest magnitudes are buffers of this prefix in the graph, new values of which
// are outputs, and states of the program under the same names: "fp8:SCOPE.K.input", .weight,
// .gradient for the K-th product with a parameter in a scope; with an interval, scales in use
// are, too, as "fp8:SCOPE.K.input.held".
inline constexpr const char* kFp8History = "fp8:";

// Rounds both factors of each product with a parameter, forward and backward, on the whole graph,
// so that ranks agree on largest magnitudes for any placement. A weight or an input is rounded a
// second time for the backward pass, so that the values kept until then do not change. Where
// products are native, a matrix product whose sizes the device supports becomes aten::_scaled_mm of
// factors that are eight bits wide, followed by the addition of the bias. Values keep their
// numbers; new ones are appended. An evaluation reads histories and does not change them. Throws
// Error for delayed scaling in a pipeline.
graph::Graph round_to_fp8(const graph::Graph& graph, const plan::Plan& plan, const StepSpec& spec);

// Returns the placements of those states: replicated, or, where each rank uses its own magnitudes,
// sharded with one element per rank, their first dims being the mesh's axes.
mesh::Placements place_fp8_states(const plan::Plan& plan);

// Returns the plan with these placements of the states of such a graph.
plan::Plan with_fp8_states(plan::Plan plan, const graph::Graph& rounded);

}  // namespace perigee::compile
