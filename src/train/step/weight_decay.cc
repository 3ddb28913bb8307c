#include "train/step/weight_decay.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace perigee::train {

bool weight_decay_varies(const job::Job& job) {
  const auto& start = job.weight_decay_schedule.start;
  return start && *start != job.optimizer.weight_decay;
}

double weight_decay(const job::Job& job, double decay, int64_t step) {
  if (!weight_decay_varies(job)) return decay;
  const auto& schedule = job.weight_decay_schedule;
  const double end = job.optimizer.weight_decay;
  if (end == 0 && decay != 0) return decay;
  const auto steps = schedule.steps > 0 ? schedule.steps : job.train.steps;
  const double done = std::clamp(double(step) / double(steps), 0.0, 1.0);
  const double left = schedule.shape == "cosine" ? 0.5 * (1 + std::cos(std::numbers::pi * done))
                                                 : 1 - done;
  const double share = end == 0 ? 1 : decay / end;
  return share * (end + (*schedule.start - end) * left);
}

}  // namespace perigee::train
