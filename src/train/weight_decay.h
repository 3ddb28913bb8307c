// Weight decay schedules.
#pragma once

#include <cstdint>

#include "job/job.h"

namespace perigee::train {

// Returns whether the weight decay is another in some steps than in others.
bool weight_decay_varies(const job::Job& job);

// Returns the weight decay of a step (from 1) for parameters whose last one is `decay`, as
// Megatron's OptimizerParamScheduler has it: from weight_decay_schedule.start it comes to
// optimizer.weight_decay at the schedule's last step (the job's, where it says none), along a line
// or half a cosine, and stays. A group whose own decay is another has it in the same proportion;
// where optimizer.weight_decay is 0 it keeps its own.
double weight_decay(const job::Job& job, double decay, int64_t step);

}  // namespace perigee::train
