#include "train/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace perigee::train {

double learning_rate(const job::Job& job, double lr, int64_t step) {
  const auto& schedule = job.lr_schedule;
  const auto warmup = std::max<int64_t>(0, schedule.warmup);
  if (step <= warmup) return lr * double(step) / double(warmup);
  const double least = job.optimizer.lr > 0 ? schedule.min_lr * lr / job.optimizer.lr : 0;
  const auto steps = job.train.steps;
  const double done =
      std::clamp(double(step - warmup) / double(std::max<int64_t>(1, steps - warmup)), 0.0, 1.0);
  if (schedule.kind == "constant") return lr;
  if (schedule.kind == "linear") return lr + (least - lr) * done;
  if (schedule.kind == "cosine")
    return least + (lr - least) * 0.5 * (1 + std::cos(std::numbers::pi * done));
  if (schedule.kind == "inverse_sqrt") {
    return std::max(least, lr * std::sqrt(double(std::max<int64_t>(1, warmup)) / double(step)));
  }
  if (schedule.kind == "wsd") {
    const auto left = std::max<int64_t>(0, steps - step);
    return left >= schedule.decay ? lr
                                  : least + (lr - least) * double(left) / double(schedule.decay);
  }
  fail("job", "lr_schedule.kind must be known, but got \"{}\"", schedule.kind);
}

}  // namespace perigee::train
