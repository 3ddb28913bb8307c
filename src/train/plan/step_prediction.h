// The predicted time of a plan's steps, and the utilisation of the devices.
#pragma once

#include <optional>
#include <string>

#include "compile/compile.h"
#include "cost/op_time.h"
#include "graph/graph.h"
#include "job/job.h"
#include "plan/plan.h"

namespace perigee::train {

struct StepPrediction {
  double step_seconds = 0;
  // Share of the seconds of ops and collectives that was measured; the rest is estimated.
  double measured_share = 0;
  // Share of a step that the rank with the longest waits spends waiting.
  double waiting = 0;
};

// Simulates the plan's programs on the job's cluster, with the times measured on its device.
// Returns nothing where cluster.file describes fewer ranks than there are.
std::optional<StepPrediction> predict_step(const compile::Programs& programs,
                                           const plan::Plan& plan, const job::Job& job,
                                           cost::Measurements& times,
                                           const std::string& runtime_folder);

// Returns the model FLOPs utilisation of steps of that length; nothing where the peak of the job's
// devices is unknown: cluster.file is not set, and no shipped description matches the device.
std::optional<double> mfu_of(const graph::Graph& graph, const plan::Plan& plan, const job::Job& job,
                             const std::string& runtime_folder, double step_seconds);

}  // namespace perigee::train
