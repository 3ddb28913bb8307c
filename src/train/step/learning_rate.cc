#include "train/step/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/fail.h"

namespace perigee::train {
namespace {

// Returns the share of the decay that remains `left` of its `steps` before the end.
double remaining_decay(const std::string& shape, int64_t left, int64_t steps) {
  const double done = 1 - double(left) / double(steps);
  if (shape == "cosine") return 0.5 * (1 + std::cos(std::numbers::pi * done));
  if (shape == "exponential") return 2 * std::pow(0.5, done) - 1;
  if (shape == "minus_sqrt") return 1 - std::sqrt(done);
  return double(left) / double(steps);
}

}  // namespace

double learning_rate(const job::Job& job, double lr, int64_t step) {
  const auto& schedule = job.lr_schedule;
  const auto warmup = std::max<int64_t>(0, schedule.warmup);
  const double share = job.optimizer.lr > 0 ? lr / job.optimizer.lr : 0;
  if (step <= warmup) {
    const double begin = schedule.init_lr * share;
    return begin + (lr - begin) * double(step) / double(warmup);
  }
  const double min_lr = schedule.min_lr * share;
  const auto steps = schedule.steps > 0 ? schedule.steps : job.train.steps;
  const double done = std::clamp(
      double(step - warmup) / double(std::max<int64_t>(1, steps - warmup)), 0.0, 1.0);
  if (schedule.kind == "constant") return lr;
  if (step > steps) return min_lr;
  if (schedule.kind == "linear") return lr + (min_lr - lr) * done;
  if (schedule.kind == "cosine")
    return min_lr + (lr - min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * done));
  if (schedule.kind == "inverse_sqrt") {
    return std::max(min_lr, lr * std::sqrt(double(std::max<int64_t>(1, warmup)) / double(step)));
  }
  if (schedule.kind == "wsd") {
    const auto left = std::max<int64_t>(0, steps - step);
    if (left >= schedule.decay) return lr;
    return min_lr + (lr - min_lr) * remaining_decay(schedule.shape, left, schedule.decay);
  }
  fail("job", "lr_schedule.kind must be known, but got \"{}\"", schedule.kind);
}

}  // namespace perigee::train
