// What a plan's steps should take, and how much of the devices they use.
#pragma once

#include <optional>
#include <string>

#include "compile/compile.h"
#include "cost/op_time.h"
#include "graph/graph.h"
#include "job/job.h"
#include "plan/plan.h"

namespace perigee::train {

struct Forecast {
  double step_seconds = 0;
  double measured_share = 0;  // of its ops' and collectives' seconds; the rest is estimated
  double waiting = 0;         // share of a step in which the rank that waits the longest does
};

// Simulates the plan's programs on the job's cluster, with the times that are known of its device.
// Returns nothing where cluster.file describes fewer ranks than there are.
std::optional<Forecast> forecast_of(const compile::Programs& programs, const plan::Plan& plan,
                                    const job::Job& job, cost::Measurements& times,
                                    const std::string& runtime_folder);

// Returns the model FLOPs utilisation of steps that take so long; nothing where the peak of the
// job's devices is not known: cluster.file describes none, and none is shipped for their kind.
std::optional<double> mfu_of(const graph::Graph& graph, const plan::Plan& plan, const job::Job& job,
                             const std::string& runtime_folder, double step_seconds);

}  // namespace perigee::train
