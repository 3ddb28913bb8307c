// Axes whose ranks train copies of the model (Plan::copy_axes), and how gradients are reduced.
#pragma once

#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::plan {

// Throw Error where copies (Plan::copy_axes, Plan::averages) or Plan::communication break the rules
// of plan::verify.
void verify_copies(const Plan& plan, const graph::Graph& graph);
void verify_communication(const Plan& plan);

}  // namespace perigee::plan
