// Mixed precision: casts on the whole graph, as LibTorch's autocast places them.
#pragma once

#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::compile {

// Inserts casts so that every op computes in the type that the plan's precision says. It runs on
// the whole graph, so that shard/ moves values in the low precision. float64 values keep their
// type. A backward op computes in the type of its forward op; a gradient is summed in the type of
// its value. A linear layer adds its bias in the type of its product; cross entropy reads logits in
// their own type. A value is cast once for all ops that read it in one type: a parameter or a
// gradient before its views, a parameter once per microbatch; a parameter that is gathered a second
// time for the backward pass, once more there. Parameters of units that are stored in parts (plan::stores_parts) have the low
// precision, as they are gathered in it, unless the precision has scopes. Outputs keep their types,
// except gradients where the precision gives them another type. Values keep their numbers; casts
// are appended.
graph::Graph autocast(const graph::Graph& graph, const plan::Plan& plan);

// Appends a node whose outputs are values of the graph already, and sets it as their producer.
graph::NodeId append(graph::Graph& graph, graph::Node node);

// Returns the plan with its placements under the names that the values have in `now`, which has
// the values of `before` under their numbers, and more.
plan::Plan with_names_of(plan::Plan plan, const graph::Graph& before, const graph::Graph& now);

}  // namespace perigee::compile
