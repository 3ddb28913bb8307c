// The predicted memory of a plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "cost/op_time.h"
#include "graph/graph.h"
#include "job/job.h"
#include "plan/plan.h"

namespace perigee::train {

// Chooses the recomputed regions that fit the plan's memory budget and fills the memory of its
// prediction from recorded traces; the memory of ops without a trace is estimated and marked so.
// Where ops on a GPU have traces that do not list all their allocations, the largest results of one of
// them count twice. With `times`, products are computed in the ways that were measured to be faster
// (measure/product_ways.h). Returns the programs of all ranks.
compile::Programs predict(plan::Plan& plan, const graph::Graph& graph, const job::Job& job,
                          compile::TraceSource& traces, cost::Measurements* times = nullptr);

// Returns the predicted peak memory of each rank by purpose (simulate/memory_kinds.h), as JSON:
// {"format": FORMAT, "kinds": [NAME, ...], "ranks": [[BYTES, ...], ...]}, by rank. FORMAT is that of
// the run's folder (view/run_format.h).
std::string memory_json(const compile::Programs& programs);

// Returns the bytes of each rank's copy of a checkpoint that is written while the job goes on;
// empty where the job writes none before its last step.
std::vector<int64_t> checkpoint_copies(const compile::Programs& programs, const plan::Plan& plan,
                                       const graph::Graph& graph, const job::Job& job);

// Returns whether the job writes a checkpoint before its last step.
bool copies_checkpoints(const job::Job& job);

}  // namespace perigee::train
