// Weight decay schedules.
#pragma once

#include <cstdint>

#include "job/job.h"

namespace perigee::train {

// Returns whether the weight decay differs between steps.
bool weight_decay_varies(const job::Job& job);

// Returns the weight decay of a step (from 1) for parameters with the final weight decay `decay`,
// as Megatron's OptimizerParamScheduler does: annealed from weight_decay_schedule.start to
// optimizer.weight_decay at the last step of the schedule (or of the job), along a line or half a
// cosine, then constant. For groups with another final value it is scaled in proportion; where
// optimizer.weight_decay is 0, a group's own is constant.
double weight_decay(const job::Job& job, double decay, int64_t step);

}  // namespace perigee::train
