#include "search/model/epilogue_refiner.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/infinity.h"
#include "schedule/schedule.h"

namespace perigee::search {
namespace {}  // namespace

double EpilogueRefiner::least_seconds(PricedStages& stages) const {
  const auto& choice = stages.choice();
  // The epilogue is at least that of the first stage, whose parts have each the number of blocks
  // with which it is shortest: more blocks may hide more of the exchange.
  const auto stage_of_part = stage_of_parts(choice.schedule, static_cast<int>(choice.pipe),
                                            static_cast<int>(choice.chunks));
  const auto count = static_cast<int>(stage_of_part.size());
  const bool several = choice.chunks > 1;
  const auto fewest = [&](int part) {
    if (several && part == 0) return rules_.fewest_first_blocks(stages.layers());
    if (several && part == count - 1) return rules_.fewest_last_blocks(stages.layers());
    return 1;
  };
  int all_fewest = 0;
  for (int part = 0; part < count; ++part) all_fewest += fewest(part);
  const double all_reduce = transfers_.scalar_all_reduce(choice);
  double optimizer = 0, until_end = 0, norm_all_reduce = 0;
  for (int part = 0; part < count; ++part) {
    if (stage_of_part[static_cast<size_t>(part)] != 0) continue;
    double least_optimizer = kInfinity, least_until_end = kInfinity;
    const auto look = [&](int length, int recomputed_blocks) {
      const auto& one = stages.costs(0, rules_.part({part, count}, length, recomputed_blocks));
      least_optimizer = std::min(least_optimizer, one.optimizer);
      least_until_end = std::min(least_until_end, one.gradient_exchange + one.norm + one.optimizer);
      norm_all_reduce = one.norm_all_reduce;
    };
    const int most = rules_.blocks() - all_fewest + fewest(part);
    for (int length = fewest(part); length <= most; ++length) {
      look(length, 0);
      if (stages.place(0).layers->recomputing && length > 0) look(length, length);
    }
    optimizer += least_optimizer;
    until_end += least_until_end;
  }
  return all_reduce + std::max(all_reduce + optimizer, norm_all_reduce + until_end);
}

void EpilogueRefiner::refine(PricedStages& stages, const CutParts& cut, bool homogeneous,
                             double exact_below, Estimate& result) const {
  const auto& choice = stages.choice();
  const double least = choice.pipe > 1 ? least_seconds(stages) : result.epilogue_seconds;
  const double gain = result.epilogue_seconds - least;
  const bool recomputing = stages.layers().recomputing != nullptr;
  if (homogeneous) {
    // Without exposed exchange the passes' sum is the same for every cut.
    const bool same_sum = choice.pipe == 1 ||
                          (!recomputing && (choice.zero < 2 || choice.parts() == 1));
    const double passes = cut.best && same_sum ? result.passes_bound : result.lower_bound;
    result.lower_bound = std::min(result.seconds, passes + least);
  }
  if (choice.pipe == 1 || result.lower_bound >= std::min(exact_below, result.seconds)) return;
  const auto row = row_of_parts(stages, rules_);
  const bool few = has_few_cuts(row);
  const bool worthwhile = homogeneous && choice.chunks == 1 && gain > kLeastGain * result.seconds;
  if (!few && !worthwhile) return;
  const double lower_bound = result.lower_bound;
  look(stages, row, cut, exact_below, result);
  // Of the cuts that fit the fastest is known.
  result.lower_bound = few && !recomputing ? result.seconds : lower_bound;
}

void EpilogueRefiner::look(PricedStages& stages, const HeterogeneousRow& row, const CutParts& cut,
                           double exact_below, Estimate& result) const {
  std::vector<int> lengths;
  for (const auto& part : cut.parts) lengths.push_back(part.length());
  const auto& choice = stages.choice();
  const auto stage_of = stage_of_parts(choice.schedule, static_cast<int>(choice.pipe),
                                       static_cast<int>(choice.chunks));
  const auto price = [&](const std::vector<int>& lengths) {
    const auto parts = parts_of(stages, rules_, lengths);
    if (!rules_.is_balanced(parts, stage_of)) return kInfinity;
    auto other = timer_.time(stages, parts, std::min(exact_below, result.seconds));
    const bool fits = other.bytes <= other.limit;
    const double seconds = fits ? other.seconds : kInfinity;
    if (seconds < result.seconds) result = std::move(other);
    return seconds;
  };
  refine_cut(row, lengths, price);
}

}  // namespace perigee::search
