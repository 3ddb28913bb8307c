// Cuts of the blocks into heterogeneous stages of one part.
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/infinity.h"
#include "search/cut/heterogeneous_cut.h"
#include "search/model/cutter.h"

namespace perigee::search {
namespace {

// Other cuts of a row save at most this factor.
constexpr double kMostGain = 1.25;

}  // namespace

bool Cutter::times_all_cuts(const Choice& choice, double seconds, double exact_below) const {
  const auto stages = static_cast<int>(choice.pipe);
  return in_.timer.times_sections(choice) &&
         has_few_cuts({.blocks = in_.rules.blocks(), .stages = stages}) &&
         seconds < kMostGain * exact_below;
}

CutParts Cutter::cut_heterogeneous(PricedStages& stages, const Window& window,
                                   double exact_below) const {
  const auto& choice = stages.choice();
  const auto& rules = in_.rules;
  const int count = stages.count();
  const auto pinned = rules.is_pinned() ? rules.pinned() : std::vector<PartBlocks>{};
  std::map<std::pair<int, int>, int> recomputed_of;  // by stage and length
  const auto times = [&](int stage, int length) -> CutStageTimes {
    if (!pinned.empty() && length != pinned[static_cast<size_t>(stage)].length()) return {};
    if (!allows(window, rules.part({stage, count}, length))) return {};
    const auto recomputed_blocks = recomputed_to_fit(stages, rules, stage, length);
    if (!recomputed_blocks) return {};
    recomputed_of[{stage, length}] = *recomputed_blocks;
    const auto& one = stages.costs(stage, rules.part({stage, count}, length, *recomputed_blocks));
    const double message = stage + 1 < count
                               ? in_.transfers.to_next(choice, stages.places(), stage).backward
                               : 0;
    return {true, one.pass(), one.backward + message, one.until_global_norm(), one.optimizer};
  };
  const HeterogeneousRow row{.blocks = rules.blocks(),
                             .stages = count,
                             .microbatches = choice.microbatches,
                             .until_norm_bound = in_.transfers.scalar_all_reduce(choice),
                             .times = times};
  const auto parts_of = [&](const std::vector<int>& lengths) {
    std::vector<int> recomputed_blocks;
    for (int stage = 0; const int length : lengths)
      recomputed_blocks.push_back(recomputed_of[{stage++, length}]);
    return rules.consecutive(lengths, recomputed_blocks);
  };
  auto lengths = search::cut_heterogeneous(row);
  if (lengths && pinned.empty() && in_.timer.times_sections(choice)) {
    double best = kInfinity;
    const auto price = [&](const std::vector<int>& cut) {
      std::vector<StageCosts> costs;
      const auto parts = parts_of(cut);
      if (!rules.is_balanced(parts) && !std::isinf(window.most)) return kInfinity;
      double before = 0;  // lower bound of the stages' idle time at both ends
      for (int stage = 0; stage < count; ++stage) {
        const auto& part = parts[static_cast<size_t>(stage)];
        costs.push_back(stages.costs(stage, part));
        const double pass = costs.back().pass();
        if (before + static_cast<double>(choice.microbatches) * pass >= best) return kInfinity;
        before += pass - costs.back().tail -
                  part.length() * stages.place(stage).layers->block.forward;
      }
      const double seconds = in_.timer.time_row_step(stages, costs, parts).total();
      best = std::min(best, seconds);
      return seconds;
    };
    if (price(*lengths) < kMostGain * exact_below) lengths = refine_cut(row, *lengths, price);
  }
  if (lengths) return {.parts = parts_of(*lengths)};
  // The largest bytes of any stage, with all blocks recomputed.
  CutParts found{.least_bytes = 0};
  const int even = std::max(1, rules.blocks() / count);
  for (int stage = 0; stage < count; ++stage) {
    const int length = pinned.empty() ? even : pinned[static_cast<size_t>(stage)].length();
    const int recomputed_blocks = stages.place(stage).layers->recomputing ? length : 0;
    const double bytes = stages.bytes(stage, rules.part({stage, count}, length, recomputed_blocks));
    found.least_bytes = std::max(found.least_bytes, bytes);
  }
  return found;
}

}  // namespace perigee::search
