// In-flight microbatches and the bubble of a choice's pipeline, by the description of
// its schedule (schedule/description.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "schedule/schedule.h"
#include "search/space/choice.h"

namespace perigee::search {

// Seconds of one microbatch on all stages together.
struct Passes {
  double forward = 0;
  double backward = 0;    // gradients of inputs, recomputation included
  double weights = 0;     // gradients of weights
  double recomputed = 0;  // of backward: can run before the gradient arrives
  double transfer = 0;    // from a stage to its neighbour

  double total() const { return forward + backward + weights; }
};

// Returns the copies of a microbatch's saved values that a stage with `later_stages` after it has
// in compiled programs. Parts of a stage share them (compile/stages/frame_pools.h): a copy is as
// large as if each part had the size of the largest.
double in_flight(const Choice& choice, int64_t later_stages);

// Returns the copies that each of the two parts of a V-shaped pipeline's first stage needs, were it
// alone on the stage.
std::pair<double, double> in_flight_on_first_stage(const Choice& choice);

// A microbatch's passes through the slowest stage, and its position, where that is known.
struct SlowestStage {
  double seconds = 0;
  std::optional<int64_t> stage;
};

// Returns the pipeline bubble of the choice's schedule: step seconds minus slowest.seconds *
// microbatches (schedule::Description::bubble_seconds). `sum`: seconds of a microbatch's passes on
// all stages. `excess`: see SearchedOrders. It grows with `sum`, and the step
// grows with `slowest`: lower bounds of both give a lower bound of the step.
double bubble_seconds(const Choice& choice, const Passes& passes, double sum,
                      const SlowestStage& slowest, double excess = 0);

// Orders that a search finds, each searched once, and the excess of their bubble over the
// lower bound.
class SearchedOrders {
 public:
  // Returns the seconds by which a step of the found orders exceeds the lower bound of the bubble,
  // for homogeneous stages with these costs (Choice::costs, all four). 0 for schedules whose orders
  // nearly reach the bound (not schedule::Description::exceeds_bound). For more than 16 stages, or
  // many microbatches, it is extrapolated from fewer.
  double excess(const Choice& choice, const Passes& passes, const std::vector<double>& costs);

 private:
  using Key = std::tuple<std::string, int64_t, int64_t, std::vector<double>>;
  // Searches the orders that orders_ lacks, in parallel.
  void find(const Choice& choice, const std::vector<double>& costs,
            const std::vector<int64_t>& microbatches);
  double excess_of(const Choice& choice, const Passes& passes,
                   const std::vector<double>& costs) const;

  std::map<Key, Schedule> orders_;  // by schedule, stages, microbatches, costs
};

}  // namespace perigee::search
