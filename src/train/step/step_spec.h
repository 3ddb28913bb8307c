// The optimizer step of a job, as input of compile/.
#pragma once

#include "compile/compile.h"
#include "graph/graph.h"
#include "job/job.h"

namespace perigee::train {

// Returns whether the job's steps are examined before they change anything (StepSpec::guarded).
bool guards_steps(const job::Job& job);

// Returns the settings of the job's optimizer for this graph's parameters. Throws Error for
// patterns that match no parameter.
compile::StepSpec step_spec(const job::Job& job, const graph::Graph& graph);

// Throws Error where model.frozen leaves no parameter to train.
void require_trained(const job::Job& job, const graph::Graph& graph);

// Returns the job with batch.global rounded down to what the plan divides, where
// batch.round allows it.
job::Job with_fitted_batch(job::Job job, const plan::Plan& plan);

}  // namespace perigee::train
