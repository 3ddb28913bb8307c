#include "schedule/interleave.h"

#include <algorithm>

#include "base/fail.h"
#include "schedule/description.h"

namespace perigee {

std::vector<InterleavedRange> interleaved_ranges(const std::vector<PipelineOp>& order) {
  std::vector<InterleavedRange> ranges;
  for (size_t at = 0; at < order.size(); ++at) {
    ranges.push_back({at, at});
    if (order[at].kind != PipelineKind::forward) continue;
    size_t first = at;
    while (first > 0 && order[first - 1].kind == PipelineKind::weight_grad) --first;
    if (first == 0 || order[first - 1].kind == PipelineKind::forward) continue;
    --first;
    const bool others = std::none_of(
        order.begin() + static_cast<ptrdiff_t>(first), order.begin() + static_cast<ptrdiff_t>(at),
        [&](const PipelineOp& op) { return op.microbatch == order[at].microbatch; });
    for (size_t k = first; others && k <= at; ++k) ranges[k] = {first, at};
  }
  return ranges;
}

void check_interleaving(const plan::Plan& plan, const Schedule& schedule) {
  if (!plan.overlap.experts) return;
  if (plan.microbatches < 2) {
    fail("overlap",
         "experts = true interleaves two microbatches, one of which computes during the all-to-all "
         "of the other, but a step has {} microbatch: also use gradient_accumulation, or a smaller "
         "batch.micro",
         plan.microbatches);
  }
  for (const auto& order : schedule.orders) {
    for (const auto& [first, last] : interleaved_ranges(order)) {
      if (first != last) return;
    }
  }
  fail("overlap",
       "experts = true interleaves a backward pass with the next forward pass, of another "
       "microbatch, but in the schedule {} with {} microbatches no stage runs them in this order: "
       "use {}, or more microbatches",
       schedule.name, plan.microbatches, schedule::names_where([](const schedule::Description& d) {
         return !d.splits_backward && !d.holds_all;
       }));
}

}  // namespace perigee
