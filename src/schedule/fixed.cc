#include "schedule/fixed.h"

#include <algorithm>
#include <cstdint>

#include "base/fail.h"

namespace perigee::schedule {
namespace {

// Returns the microbatches that run through a chunk together.
int group_of(const ScheduleOptions& o) {
  if (o.microbatches < o.stages) {
    fail("schedule", "interleaved with {} stages exists for at least {} microbatches, but got {}",
         o.stages, o.stages, o.microbatches);
  }
  const int group = o.group.value_or(o.stages);
  if (group < o.stages || group > o.microbatches) {
    fail(
        "schedule",
        "interleaved with {} stages and {} microbatches exists for a group of {} to {}, but got {}",
        o.stages, o.microbatches, o.stages, o.microbatches, group);
  }
  const int rest = o.microbatches % group;
  if (rest != 0 && rest < o.stages) {
    fail("schedule",
         "interleaved with {} stages and groups of {} exists for microbatches that are a multiple "
         "of {}{}, but got {}",
         o.stages, group, group,
         group > o.stages ? fmt::format(" or leave at least {} over", o.stages) : "",
         o.microbatches);
  }
  return group;
}

}  // namespace

Orders warm_up_then_alternate(const Description& schedule, const ScheduleOptions& options,
                              const Shape& shape) {
  Orders orders(shape.stages);
  for (int s = 0; s < shape.stages; ++s) {
    const int64_t later = shape.stages - 1 - s;
    const int64_t flight = schedule.holds_all ? shape.microbatches
                                              : schedule.flight_slope * later + 1 + options.extra;
    const auto warm_up = static_cast<int>(std::min<int64_t>(shape.microbatches, flight));
    auto& order = orders[s];
    order.reserve(2 * shape.microbatches);
    for (int m = 0; m < warm_up; ++m) order.push_back({PipelineKind::forward, m, 0});
    for (int m = 0; m < shape.microbatches; ++m) {
      order.push_back({PipelineKind::backward, m, 0});
      if (m + warm_up < shape.microbatches) {
        order.push_back({PipelineKind::forward, m + warm_up, 0});
      }
    }
  }
  return orders;
}

Orders interleaved(const Description& /*schedule*/, const ScheduleOptions& options,
                   const Shape& shape) {
  const int group = group_of(options);
  // The order of (microbatch, chunk) on each stage; backward passes take the chunks from the last.
  std::vector<PipelineOp> forward, backward;
  for (int first = 0; first < shape.microbatches; first += group) {
    const int end = std::min(first + group, shape.microbatches);
    for (int c = 0; c < shape.chunks; ++c) {
      for (int m = first; m < end; ++m) {
        forward.push_back({PipelineKind::forward, m, c});
        backward.push_back({PipelineKind::backward, m, shape.chunks - 1 - c});
      }
    }
  }
  const size_t total = forward.size();
  Orders orders(shape.stages);
  for (int s = 0; s < shape.stages; ++s) {
    const size_t warm_up = std::min<size_t>(
        total, 2 * (shape.stages - 1 - s) + (shape.chunks - 1) * group);
    auto& order = orders[s];
    order.assign(forward.begin(), forward.begin() + warm_up);
    for (size_t i = 0; i < total; ++i) {
      if (i + warm_up < total) order.push_back(forward[i + warm_up]);
      order.push_back(backward[i]);
    }
  }
  return orders;
}

Orders looped_bfs(const Description& /*schedule*/, const ScheduleOptions& /*options*/,
                  const Shape& shape) {
  std::vector<PipelineOp> order;
  for (int c = 0; c < shape.chunks; ++c) {
    for (int m = 0; m < shape.microbatches; ++m) order.push_back({PipelineKind::forward, m, c});
  }
  for (size_t i = order.size(); i-- > 0;) {
    order.push_back({PipelineKind::backward, order[i].microbatch, order[i].chunk});
  }
  return Orders(shape.stages, order);
}

}  // namespace perigee::schedule
