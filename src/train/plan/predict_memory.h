// The predicted memory of a plan.
#pragma once

#include "compile/compile.h"
#include "graph/graph.h"
#include "job/job.h"
#include "plan/plan.h"

namespace perigee::train {

// Chooses the recomputed regions that fit the plan's memory budget and fills the memory of its
// prediction from recorded traces; the memory of ops without a trace is estimated and marked so.
// Returns the programs of all ranks.
compile::Programs predict(plan::Plan& plan, const graph::Graph& graph, const job::Job& job,
                          compile::TraceSource& traces);

}  // namespace perigee::train
