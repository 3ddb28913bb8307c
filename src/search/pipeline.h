// What a schedule makes of a pipeline's passes: the microbatches that a stage has in flight, and
// the time that stages lose to each other.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cost/schedule.h"
#include "search/choice.h"

namespace perigee::search {

// Of a microbatch, all stages together. Seconds.
struct Passes {
  double forward = 0;
  double backward = 0;  // gradients of inputs, and what runs again for them
  double weights = 0;   // gradients of weights
  double again = 0;     // of backward: what runs again, while a stage waits for a gradient
  double transfer = 0;  // from a stage to its neighbour

  double total() const { return forward + backward + weights; }
};

// Returns how many copies a stage with so many stages behind it has of what it keeps of a
// microbatch, as compiled programs have them; parts of a stage share theirs
// (compile/frame_pools.h): a copy is as large as all parts would be if each held what the largest
// does.
double in_flight(const Choice& choice, int64_t successors);

// Returns the same of each of the two parts of a V-shaped pipeline's first stage, were it alone:
// the second is passed at once.
std::pair<double, double> in_flight_at_first(const Choice& choice);

// A microbatch's passes through the slowest stage, and which it is, where that is known.
struct Longest {
  double seconds = 0;
  std::optional<int64_t> stage;
};

// Returns the seconds that a step of the choice's schedule takes beyond `longest` times
// microbatches. `sum` is what a microbatch's passes take on all stages. Where stages are alike that
// is exact for schedules that are given by a formula, and no schedule loses less for those that a
// search finds: `excess` is what they then lose more. Grows with `sum`; together with `longest`
// times microbatches it grows with `longest`, so that it bounds what is not known yet from below.
double lost(const Choice& choice, const Passes& passes, double sum, const Longest& longest,
            double excess = 0);

// Orders that are found by a search, each once, and what they lose.
class SearchedOrders {
 public:
  // Returns the seconds that a step of zbv, v_half or v_min takes beyond that, by its orders for
  // those costs (Choice::costs, all four), where stages are alike: with room for few in flight, or
  // unequal costs, their searches stay above that bound. 0 for others, which come near to it. Of
  // more than 16 stages, or many microbatches, it is found from those for fewer.
  double excess(const Choice& choice, const Passes& passes, const std::vector<double>& costs);

 private:
  using Key = std::tuple<std::string, int64_t, int64_t, std::vector<double>>;
  // Finds the orders of these that are not known yet, at once.
  void find(const Choice& choice, const std::vector<double>& costs,
            const std::vector<int64_t>& microbatches);
  double excess_of(const Choice& choice, const Passes& passes,
                   const std::vector<double>& costs) const;

  std::map<Key, Schedule> known_;  // by schedule, stages, microbatches, costs
};

}  // namespace perigee::search
