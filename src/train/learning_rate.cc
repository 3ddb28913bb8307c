#include "train/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace perigee::train {
namespace {

// Returns the share of the fall that is left so many steps before its end.
double left_of(const std::string& shape, int64_t left, int64_t steps) {
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
  const double least = schedule.min_lr * share;
  const auto steps = schedule.steps > 0 ? schedule.steps : job.train.steps;
  const double done =
      std::clamp(double(step - warmup) / double(std::max<int64_t>(1, steps - warmup)), 0.0, 1.0);
  if (schedule.kind == "constant") return lr;
  if (step > steps) return least;
  if (schedule.kind == "linear") return lr + (least - lr) * done;
  if (schedule.kind == "cosine")
    return least + (lr - least) * 0.5 * (1 + std::cos(std::numbers::pi * done));
  if (schedule.kind == "inverse_sqrt") {
    return std::max(least, lr * std::sqrt(double(std::max<int64_t>(1, warmup)) / double(step)));
  }
  if (schedule.kind == "wsd") {
    const auto left = std::max<int64_t>(0, steps - step);
    if (left >= schedule.decay) return lr;
    return least + (lr - least) * left_of(schedule.shape, left, schedule.decay);
  }
  fail("job", "lr_schedule.kind must be known, but got \"{}\"", schedule.kind);
}

}  // namespace perigee::train
