// Learning rate schedules.
#pragma once

#include <cstdint>

#include "job/job.h"

namespace perigee::train {

// Returns the learning rate of a step (from 1) for the peak `lr`. It rises linearly from init_lr
// over `warmup` steps to the peak. Then, up to the last step of the schedule (or of the job), it
//   constant      stays
//   linear        falls linearly to min_lr at the last step
//   cosine        falls along half a cosine to min_lr at the last step (Loshchilov and Hutter 2016)
//   inverse_sqrt  falls with sqrt(warmup / step), not below min_lr (Vaswani et al. 2017)
//   wsd           stays, then falls to min_lr over the last `decay` steps (Hu et al. 2024), as
//                 `shape` says: linear, cosine, exponential (2 * 0.5^done - 1) or minus_sqrt
//                 (1 - sqrt(done))
// After the last step all but constant stay at min_lr. For groups with another peak init_lr and
// min_lr are scaled by lr / optimizer.lr.
double learning_rate(const job::Job& job, double lr, int64_t step);

}  // namespace perigee::train
