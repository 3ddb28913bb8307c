#include "cost/schedule_turns.h"

#include <algorithm>

#include "base/error.h"

namespace perigee {

std::vector<Span> turns_of(const std::vector<PipelineOp>& order) {
  std::vector<Span> turns;
  for (size_t at = 0; at < order.size(); ++at) {
    turns.push_back({at, at});
    if (order[at].kind != PipelineKind::forward) continue;
    size_t first = at;
    while (first > 0 && order[first - 1].kind == PipelineKind::weight_grad) --first;
    if (first == 0 || order[first - 1].kind == PipelineKind::forward) continue;
    --first;
    const bool others = std::none_of(
        order.begin() + static_cast<ptrdiff_t>(first), order.begin() + static_cast<ptrdiff_t>(at),
        [&](const PipelineOp& op) { return op.microbatch == order[at].microbatch; });
    for (size_t k = first; others && k <= at; ++k) turns[k] = {first, at};
  }
  return turns;
}

void check_turns(const plan::Plan& plan, const Schedule& schedule) {
  if (!plan.overlap.experts) return;
  if (plan.microbatches < 2) {
    fail("overlap",
         "experts = true has one microbatch compute while another one's rows go to their experts, "
         "but a step has {} microbatch: use gradient_accumulation beside it, or a smaller "
         "batch.micro",
         plan.microbatches);
  }
  for (const auto& order : schedule.orders) {
    for (const auto& [first, last] : turns_of(order)) {
      if (first != last) return;
    }
  }
  fail("overlap",
       "experts = true runs a backward pass in turns with the forward pass behind it, of another "
       "microbatch, but no stage has them so by the schedule {} with {} microbatches: use 1f1b, "
       "eager_1f1b or interleaved, or more microbatches",
       schedule.name, plan.microbatches);
}

}  // namespace perigee
