#include "solve/assign/priced.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "solve/assign/eliminate.h"
#include "solve/assign/improve.h"

namespace perigee::solve {
namespace {

constexpr int kMostPrices = 40;

int64_t backward_of(const AssignModel& model, std::span<const int> solution) {
  int64_t memory = 0;
  for (size_t v = 0; v < solution.size(); ++v) {
    memory += model.variables[v].uses[solution[v]].backward;
  }
  return memory;
}

class Pricing {
 public:
  Pricing(const AssignModel& model, double most_work, Deadline deadline)
      : model_(model), most_work_(most_work), deadline_(deadline) {}

  Priced run() {
    const auto unpriced = cheapest(0);
    if (!unpriced) return {};
    found_.lower_bound = static_cast<double>(time_of(model_, *unpriced));
    offer(*unpriced);
    if (found_.best) return std::move(found_);
    const double most = most_price();
    const auto least = cheapest(most);
    if (!least) return std::move(found_);
    offer(*least);
    auto beyond = point(*unpriced), within = point(*least);
    for (int k = 0; k < kMostPrices && within.memory <= model_.capacity; ++k) {
      if (std::chrono::steady_clock::now() > deadline_) break;
      // The price at which both solutions have equal cost.
      const double price = std::min(most, static_cast<double>(within.time - beyond.time) /
                                              static_cast<double>(beyond.memory - within.memory));
      const auto next = cheapest(price);
      if (!next) break;
      offer(*next);
      const auto current = point(*next);
      const auto cost = [&](const Point& p) {
        return static_cast<double>(p.time) + price * static_cast<double>(p.memory);
      };
      // Charges are rounded to whole quanta: half a quantum for each variable, and the rounding
      // error of doubles of this size.
      const double rounding = static_cast<double>(model_.variables.size()) / 2 +
                              8 * std::numeric_limits<double>::epsilon() * price * most_memory();
      found_.lower_bound = std::max(
          found_.lower_bound,
          cost(current) - rounding - price * static_cast<double>(model_.capacity));
      if (cost(current) >= cost(within) - 2 * rounding) break;
      (current.memory <= model_.capacity ? within : beyond) = current;
    }
    if (found_.best) descend(model_, *found_.best);
    return std::move(found_);
  }

 private:
  struct Point {
    int64_t time, memory;
  };

  Point point(std::span<const int> solution) const {
    return {time_of(model_, solution), backward_of(model_, solution)};
  }

  // Returns the highest price: the total charge must stay far below kForbidden.
  double most_price() const { return static_cast<double>(kForbidden) / 16 / most_memory(); }

  // Returns an upper bound on the memory of every choice and on every limit that binds.
  double most_memory() const {
    double memory = 1;
    for (const auto& variable : model_.variables) {
      int64_t most = 0;
      for (const auto& use : variable.uses) most = std::max(most, use.backward);
      memory += static_cast<double>(most);
    }
    return std::max(memory, static_cast<double>(model_.capacity));
  }

  std::optional<std::vector<int>> cheapest(double price) const {
    AssignModel priced;
    priced.variables = model_.variables;
    priced.pairs = model_.pairs;
    for (auto& variable : priced.variables) {
      for (auto& use : variable.uses) {
        use.time += std::llround(price * static_cast<double>(use.backward));
      }
    }
    auto found = eliminate(priced, most_work_);
    return found.finished ? std::move(found.best) : std::nullopt;
  }

  void offer(const std::vector<int>& solution) {
    if (memory_of(model_, solution) > model_.capacity) return;
    if (found_.best && time_of(model_, *found_.best) <= time_of(model_, solution)) return;
    found_.best = solution;
  }

  const AssignModel& model_;
  const double most_work_;
  const Deadline deadline_;
  Priced found_;
};

}  // namespace

Priced price_memory(const AssignModel& model, double most_work, Deadline deadline) {
  return Pricing(model, most_work, deadline).run();
}

}  // namespace perigee::solve
