// Axes whose ranks train copies of the model (Plan::copy_axes), and how gradients are reduced.
#pragma once

#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::plan {

// Throws Error as plan::verify says.
void verify_copies(const Plan& plan, const graph::Graph& graph);
void verify_communication(const Plan& plan);

}  // namespace perigee::plan
