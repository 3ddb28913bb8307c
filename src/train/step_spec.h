// From a job to what compile/ asks.
#pragma once

#include <nlohmann/json.hpp>

#include "compile/compile.h"
#include "graph/graph.h"
#include "job/job.h"

namespace perigee::train {

// Returns what the job's optimizer does with this graph's parameters. Throws Error for patterns
// that match no parameter.
compile::StepSpec step_spec(const job::Job& job, const graph::Graph& graph);

// Returns the job as JSON: what strategy functions see.
nlohmann::json describe(const job::Job& job);

// Returns the job with the samples that a step has by the plan, where batch.round allows fewer.
job::Job with_fitted_batch(job::Job job, const plan::Plan& plan);

}  // namespace perigee::train
