// The whole space of a search, evaluated by the model without bounds: every combination with every
// cut of its blocks into parts.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "search/rank_limits.h"
#include "search/space/space.h"
#include "tests/search/support_search.h"

namespace perigee::search {

// The first block of each later part.
using Starts = std::vector<int>;

// Returns all cuts of `blocks` blocks into so many parts. `fewest_first`, `fewest_last`: blocks of
// the first part and of the last one, 0 or 1; all others have at least one.
std::vector<Starts> all_cuts(int blocks, int parts, int fewest_first, int fewest_last);

// Returns all cuts of the model's blocks into the choice's parts.
std::vector<Starts> all_cuts(const Choice& choice, const CostModel& model, const Layers& layers);

class WholeSpace {
 public:
  // Of the request and its pins. Keeps both by reference.
  WholeSpace(ChainPlanner& planner, const cost::Cluster& on);

  struct Combination {
    Choice choice;
    const Layers* layers = nullptr;
    double bound = 0;  // with which it enters the space, in seconds
  };
  // Every combination, also those that the search makes of others: the optimizer's state on the
  // host, and more blocks recomputed as a whole.
  const std::vector<Combination>& combinations() const { return combinations_; }

  // Calls `visit` with the model's estimate of each cut that fits into memory.
  void each_cut(const Combination& of,
                const std::function<void(const Starts&, const Estimate&)>& visit);

  // Returns the least seconds of all cuts of all combinations, infinity where none fits.
  double least_seconds();

 private:
  // Returns the model in which the later parts begin there; without `starts`, anywhere.
  const CostModel& model_of(const Starts& starts);
  const Layers* tables_of(const Choice& choice);
  void add(const Choice& choice, const Layers* layers, double bound);

  const Request& request_;
  const cost::Cluster& cluster_;
  simulate::OpCosts costs_;
  Space space_;
  RankLimits limits_;
  Folded folded_;
  compile::StepSpec spec_;
  LayerTables tables_;
  std::map<Starts, std::unique_ptr<CostModel>> models_;
  std::vector<Combination> combinations_;
};

}  // namespace perigee::search
