#include "train/step/step_scalars.h"

#include <fmt/format.h>

#include <limits>

#include "job/step_list.h"
#include "train/step/learning_rate.h"
#include "train/step/step_spec.h"
#include "train/step/weight_decay.h"

namespace perigee::train {

std::map<std::string, double> step_scalars(const job::Job& job, int64_t step) {
  const auto& optimizer = job.optimizer;
  std::map<std::string, double> scalars;
  const auto add = [&](size_t group, double lr, double decay) {
    scalars[fmt::format("lr.{}", group)] = learning_rate(job, lr, step);
    if (!weight_decay_varies(job)) return;
    scalars[fmt::format("weight_decay.{}", group)] = weight_decay(job, decay, step);
  };
  add(0, optimizer.lr, optimizer.weight_decay);
  for (size_t g = 0; g < optimizer.groups.size(); ++g) {
    const auto& group = optimizer.groups[g];
    add(g + 1, group.lr.value_or(optimizer.lr),
        group.weight_decay.value_or(optimizer.weight_decay));
  }
  if (guards_steps(job)) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const bool skips = job::contains(job::parse_steps(job.train.skip_steps), step);
    const double most = skips ? -infinity : infinity;
    scalars["most_loss"] = scalars["most_norm"] = most;
  }
  return scalars;
}

}  // namespace perigee::train
