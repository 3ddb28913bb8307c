// The sections "average.K": copies of the model (plan::Plan::copy_axes) meet.
#include <fmt/format.h>

#include <set>

#include "compile/passes.h"

namespace perigee::compile {

void make_average_sections(Draft& draft, const Source& source, const Gradients& gradients) {
  const auto& plan = source.plan;
  if (source.spec.evaluation || plan::copies_of(plan) == 1) return;
  std::set<int64_t> intervals;
  for (const auto& average : plan.averages) intervals.insert(average.every);
  for (const auto every : intervals) {
    DraftSection section{fmt::format("average.{}", every), false, {}};
    section.every = every;
    for (const auto& bucket : gradients.buckets) {
      for (int32_t a : bucket.averages) {
        const auto& average = plan.averages[a];
        const auto axes = join_axes(plan.mesh, average.axes, "");
        if (average.every != every) continue;
        for (auto value : {bucket.weights, bucket.first_state, bucket.second_state}) {
          const bool wanted = value == bucket.weights || average.states;
          if (!wanted || !value.defined()) continue;
          section.instructions.push_back(all_reduce(draft, value, axes, "avg"));
        }
      }
    }
    if (!section.instructions.empty()) draft.sections.push_back(std::move(section));
  }
}

}  // namespace perigee::compile
