// The sections "average.K": copies of the model (plan::Plan::copy_axes) are averaged.
#include <set>
#include <vector>

#include "compile/draft/source.h"
#include "compile/gradients/gradients.h"
#include "compile/gradients/step.h"

namespace perigee::compile {
namespace {

// Returns the states of the bucket's parameters that this rank holds.
std::vector<ValueId> states_of(const Gradients& gradients, const Bucket& bucket) {
  auto states = bucket.states;
  for (const auto p : bucket.parameters) {
    const auto& whole = gradients.parameters[p].whole_states;
    states.insert(states.end(), whole.begin(), whole.end());
    for (const auto& piece : gradients.pieces) {
      if (piece.parameter != p) continue;
      states.insert(states.end(), piece.states.begin(), piece.states.end());
    }
  }
  return states;
}

}  // namespace

void make_average_sections(Draft& draft, const Source& source, const Gradients& gradients) {
  const auto& plan = source.plan;
  if (source.spec.evaluation || plan::copies_of(plan) == 1) return;
  std::set<int64_t> intervals;
  for (const auto& average : plan.averages) intervals.insert(average.every);
  for (const auto every : intervals) {
    DraftSection section{{.kind = SectionKind::average, .period = every}, false, {}};
    section.every = every;
    for (const auto& bucket : gradients.buckets) {
      for (int32_t a : bucket.averages) {
        const auto& average = plan.averages[a];
        const auto stream = Stream::over(average.axes.joined({}, plan.mesh));
        if (average.every != every) continue;
        section.instructions.push_back(all_reduce(draft, bucket.weights, stream, "avg"));
        if (!average.states) continue;
        for (const auto state : states_of(gradients, bucket)) {
          section.instructions.push_back(all_reduce(draft, state, stream, "avg"));
        }
      }
    }
    if (!section.instructions.empty()) draft.sections.push_back(std::move(section));
  }
}

}  // namespace perigee::compile
