// The stages of a plan's pipeline, as the solver of shardings reads them.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::methods {

// The stage of each node, and by stage the most microbatches in flight. Both empty without
// a pipeline.
struct PlannedStages {
  std::vector<int> of_node;
  std::vector<double> in_flight;
};

// Returns the part of each node. An op that every part computes for itself is in the part that uses
// it first.
std::vector<int> parts_of_nodes(const graph::Graph& graph, const plan::Pipeline& pipeline);

// Returns the stages of the plan.
PlannedStages planned_stages(const graph::Graph& graph, const plan::Plan& plan);

}  // namespace perigee::methods
