// `perigee plan` and `perigee simulate`: the plan of a job and a prediction of its step, without
// running it.
#pragma once

#include "train/task/results.h"
#include "train/task/task.h"

namespace perigee::train {

// Makes the plan and predicts its memory.
PlanResult plan_job(const Task& task);

// Makes the plan, compiles it and simulates a step on the job's cluster.
SimulateResult simulate_job(const Task& task);

}  // namespace perigee::train
