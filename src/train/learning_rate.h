// Learning rate schedules.
#pragma once

#include <cstdint>

#include "job/job.h"

namespace perigee::train {

// Returns the learning rate of a step (from 1) for the peak `lr`. It rises linearly over `warmup`
// steps to the peak, then
//   constant      stays
//   linear        falls linearly to min_lr at the last step
//   cosine        falls along half a cosine to min_lr at the last step (Loshchilov and Hutter 2016)
//   inverse_sqrt  falls with sqrt(warmup / step), not below min_lr (Vaswani et al. 2017)
//   wsd           stays, then falls linearly to min_lr over the last `decay` steps (Hu et al. 2024)
// min_lr is that of the schedule, scaled by lr / optimizer.lr for groups with another peak.
double learning_rate(const job::Job& job, double lr, int64_t step);

}  // namespace perigee::train
