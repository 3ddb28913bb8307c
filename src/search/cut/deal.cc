#include "search/cut/deal.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

namespace perigee::search {
namespace {

// One more block for a stage: the stage's seconds with it, and the part that gets it.
struct Offer {
  double seconds = 0;
  int stage = 0, part = 0;
  bool operator>(const Offer& other) const {
    return std::tuple(seconds, -stage) > std::tuple(other.seconds, -other.stage);
  }
};

// Distributes the remaining blocks where all parts but the ends have `already` blocks. `exact`: no
// other distribution, also from a smaller `already`, has a faster slowest stage.
std::optional<std::vector<int>> deal(const Deal& row, int already, bool& exact) {
  const auto parts = static_cast<int>(row.stages.size());
  const int stages = 1 + *std::max_element(row.stages.begin(), row.stages.end());
  std::vector<std::vector<int>> of(static_cast<size_t>(stages));
  std::vector<double> taken(static_cast<size_t>(stages));
  std::vector<int> lengths(static_cast<size_t>(parts), already);
  lengths.front() = row.fewest_first;
  lengths.back() = row.fewest_last;
  int left = row.blocks;
  for (int part = 0; part < parts; ++part) {
    of[row.stages[part]].push_back(part);
    taken[row.stages[part]] += row.seconds(part, lengths[part]);
    left -= lengths[part];
  }
  if (left < 0) return std::nullopt;
  std::priority_queue<Offer, std::vector<Offer>, std::greater<>> offers;
  const auto offer_to = [&](int stage, int part) {
    ++lengths[part];
    const bool fits = !row.fits || row.fits(stage, of[stage], lengths);
    --lengths[part];
    if (!fits) return false;
    const double more = row.seconds(part, lengths[part] + 1) - row.seconds(part, lengths[part]);
    offers.push({taken[stage] + more, stage, part});
    return true;
  };
  // The part of the stage that gets the block does not change the stage's seconds.
  const auto offer = [&](int stage) {
    const auto least = [&](const auto& of_part) {
      const auto with = [&](int part) { return of_part(part, lengths[part] + 1); };
      return *std::ranges::min_element(of[stage], {}, with);
    };
    if (row.in_rounds && offer_to(stage, least(row.seconds))) return;
    offer_to(stage, least(row.in_flight_bytes));
  };
  for (int stage = 0; stage < stages; ++stage) {
    if (row.fits && !row.fits(stage, of[stage], lengths)) return std::nullopt;
    offer(stage);
  }
  // Each block goes to the stage that takes the least time with it.
  double longest = 0;
  for (; left > 0; --left) {
    if (offers.empty()) return std::nullopt;
    const auto best = offers.top();
    offers.pop();
    ++lengths[best.part];
    taken[best.stage] = best.seconds;
    longest = std::max(longest, best.seconds);
    offer(best.stage);
  }
  exact = already == 1 || *std::ranges::max_element(taken) <= longest;
  return lengths;
}

}  // namespace

std::optional<std::vector<int>> deal(const Deal& row) {
  // Starts close to the even distribution, since most parts end close to it.
  const auto even = row.blocks / std::ssize(row.stages) - 1;
  bool exact = false;
  if (even > 1) {
    auto lengths = deal(row, static_cast<int>(even), exact);
    if (lengths && exact) return lengths;
  }
  return deal(row, 1, exact);
}

}  // namespace perigee::search
