// Plans of the graphs that generate text.
#pragma once

#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::train {

// Throws Error for a plan with a pipeline, by which no text is generated.
void require_generating_plan(const plan::Plan& trained);

// `trained`: a plan of the training graph of the model that `graph` is an evaluation of, with or
// without caches (with_caches). Returns the plan of `graph` on the same mesh:
//   placements of weights, rules and units of level 3 are those of `trained`;
//   data inputs and the logits are replicated: all ranks compute all rows;
//   a cache is sharded over heads on the axes on which its keys are, as long as they divide the heads.
// Nothing else of `trained` matters here (optimizer state, precision, recompute, offload, overlap,
// copies). Throws Error for a plan with a pipeline, as require_generating_plan does.
plan::Plan decode_plan(const graph::Graph& graph, const plan::Plan& trained);

// Returns the plan of another graph of the same model and caches, with the same placements.
plan::Plan plan_of_graph(const graph::Graph& graph, plan::Plan plan);

}  // namespace perigee::train
