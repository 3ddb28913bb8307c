#include "search/model/epilogue_refiner.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "schedule/schedule.h"
#include "search/cut/heterogeneous_cut.h"

namespace perigee::search {

double EpilogueRefiner::least_seconds(PricedStages& stages) const {
  const auto& choice = stages.choice();
  // The epilogue is at least that of a first stage whose parts have as few blocks as they may.
  const auto stage_of_part = stage_of_parts(choice.schedule, static_cast<int>(choice.pipe),
                                            static_cast<int>(choice.chunks));
  const auto count = static_cast<int>(stage_of_part.size());
  StageCosts first_stage;
  for (int part = 0; part < count; ++part) {
    if (stage_of_part[static_cast<size_t>(part)] != 0) continue;
    int length = 1;
    if (choice.chunks > 1 && part == count - 1) {
      length = rules_.fewest_last_blocks(stages.layers());
    } else if (choice.chunks > 1 && part == 0) {
      length = rules_.fewest_first_blocks(stages.layers());
    }
    first_stage.join(stages.costs(0, rules_.part({part, count}, length)), choice.chunks);
  }
  const double all_reduce = transfers_.scalar_all_reduce(choice);
  return all_reduce + std::max(all_reduce, first_stage.until_global_norm()) + first_stage.optimizer;
}

void EpilogueRefiner::refine(PricedStages& stages, const CutParts& cut, double exact_below,
                             Estimate& result) const {
  const auto& choice = stages.choice();
  const double least = choice.pipe > 1 ? least_seconds(stages) : result.epilogue_seconds;
  const double gain = result.epilogue_seconds - least;
  // Without exposed exchange the passes' sum is the same for every cut.
  const bool same_sum = choice.pipe == 1 ||
                        (!stages.layers().recomputing && (choice.zero < 2 || choice.parts() == 1));
  result.lower_bound = cut.best && same_sum ? result.seconds - gain : result.lower_bound + least;
  if (choice.pipe == 1 || choice.chunks > 1 || gain <= kLeastGain * result.seconds ||
      result.lower_bound >= exact_below) {
    return;
  }
  const double lower_bound = result.lower_bound;
  move_blocks(stages, cut, exact_below, result);
  result.lower_bound = lower_bound;
}

void EpilogueRefiner::move_blocks(PricedStages& stages, const CutParts& cut, double exact_below,
                                  Estimate& result) const {
  std::vector<int> lengths;
  for (const auto& part : cut.parts) lengths.push_back(part.length());
  const HeterogeneousRow row{
      .blocks = rules_.blocks(),
      .stages = stages.count(),
      .microbatches = stages.choice().microbatches,
      .identical_inner = true,
      .times = [&](int stage, int length) -> CutStageTimes {
        return {recomputed_to_fit(stages, rules_, stage, length).has_value()};
      }};
  const auto price = [&](const std::vector<int>& lengths) {
    std::vector<int> recomputed_blocks;
    for (int stage = 0; stage < row.stages; ++stage) {
      const int length = lengths[static_cast<size_t>(stage)];
      recomputed_blocks.push_back(recomputed_to_fit(stages, rules_, stage, length).value_or(0));
    }
    auto other = timer_.time(stages, rules_.consecutive(lengths, recomputed_blocks), exact_below);
    const double seconds = other.seconds;
    if (seconds < result.seconds) result = std::move(other);
    return seconds;
  };
  refine_cut(row, lengths, price);
}

}  // namespace perigee::search
