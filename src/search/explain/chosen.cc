#include "search/explain/chosen.h"

#include <algorithm>
#include <utility>

namespace perigee::search {
namespace {

bool equal(const methods::MethodUse& a, const methods::MethodUse& b) {
  return a.method->name() == b.method->name() && a.config.items == b.config.items &&
         a.config.fields == b.config.fields;
}

// Returns how many methods of the candidate the strategy has; 0 where it has another mesh.
size_t common(const Candidate& candidate, const methods::StrategySpec& strategy,
              std::span<const std::shared_ptr<const methods::Method>> defined) {
  size_t count = 0;
  for (const auto& use : methods::from_json(candidate.strategy, "a candidate", defined).methods) {
    const bool has = std::ranges::any_of(strategy.methods,
                                         [&](const auto& own) { return equal(own, use); });
    if (!has && use.method->name() == "parallel_mode") return 0;
    count += has;
  }
  return count;
}

}  // namespace

std::shared_ptr<Found> chosen_by(const methods::StrategySpec& strategy, const SearchesMade& made) {
  const Found* of = nullptr;
  const Candidate* best = nullptr;
  size_t most = 0;
  for (const auto& search : made.list) {
    for (const auto& candidate : search->others) {
      const auto count = common(candidate, strategy, made.defined);
      if (count <= most) continue;
      most = count;
      of = search.get();
      best = &candidate;
    }
  }
  if (!best) return nullptr;
  auto found = std::make_shared<Found>(*of);
  found->best = *best;
  found->chosen = !of->best.judged || of->best.strategy != best->strategy;
  for (const auto& search : made.list) {
    if (search.get() == of) continue;
    found->lower_bound = std::min(found->lower_bound, search->lower_bound);
    found->combinations += search->combinations;
    found->looked_at += search->looked_at;
    found->stopped = found->stopped || search->stopped;
  }
  return found;
}

}  // namespace perigee::search
