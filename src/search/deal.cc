#include "search/deal.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace perigee::search {
namespace {

// A block more for a stage: what the stage then takes, and which part has it.
struct Offer {
  double seconds = 0;
  int stage = 0, part = 0;
  bool operator>(const Offer& other) const {
    return std::tuple(seconds, -stage) > std::tuple(other.seconds, -other.stage);
  }
};

}  // namespace

std::optional<std::vector<int>> deal(const Deal& row) {
  const auto parts = static_cast<int>(row.stages.size());
  if (parts > row.blocks) return std::nullopt;
  const int stages = 1 + *std::max_element(row.stages.begin(), row.stages.end());
  std::vector<std::vector<int>> of(static_cast<size_t>(stages));
  std::vector<double> taken(static_cast<size_t>(stages));
  std::vector<int> lengths(static_cast<size_t>(parts), 1);
  for (int part = 0; part < parts; ++part) {
    of[row.stages[part]].push_back(part);
    taken[row.stages[part]] += row.seconds(part, 1);
  }
  std::priority_queue<Offer, std::vector<Offer>, std::greater<>> offers;
  // The part that then holds the least has it: which one it is makes the stage no slower.
  const auto offer = [&](int stage) {
    const auto part = *std::min_element(of[stage].begin(), of[stage].end(), [&](int a, int b) {
      return row.held(a, lengths[a] + 1) < row.held(b, lengths[b] + 1);
    });
    ++lengths[part];
    const bool fits = row.fits(stage, of[stage], lengths);
    --lengths[part];
    if (!fits) return;
    const double more = row.seconds(part, lengths[part] + 1) - row.seconds(part, lengths[part]);
    offers.push({taken[stage] + more, stage, part});
  };
  for (int stage = 0; stage < stages; ++stage) {
    if (!row.fits(stage, of[stage], lengths)) return std::nullopt;
    offer(stage);
  }
  // Each block goes where it makes the least of a longest stage: no other way has a shorter one.
  for (int left = row.blocks - parts; left > 0; --left) {
    if (offers.empty()) return std::nullopt;
    const auto best = offers.top();
    offers.pop();
    ++lengths[best.part];
    taken[best.stage] = best.seconds;
    offer(best.stage);
  }
  return lengths;
}

}  // namespace perigee::search
