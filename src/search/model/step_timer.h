// The time and memory of a step of a choice, for given parts of its pipeline.
#pragma once

#include <vector>

#include "search/model/bounds.h"
#include "search/model/estimate.h"
#include "search/model/pipeline/pipeline.h"
#include "search/model/pipeline/rounds.h"
#include "search/model/stage/part_rules.h"
#include "search/model/stage/priced_stages.h"
#include "search/model/stage/stage_costs.h"
#include "search/model/transfers.h"

namespace perigee::search {

// The seconds of a step of a heterogeneous pipeline whose sections are timed one by one.
struct RowStep {
  double passes = 0;             // of all microbatches through all stages
  double gradient_exchange = 0;  // after the passes: exposed
  double optimizer = 0;          // after the exchange, with the all-reduce of the norm
  double total() const { return passes + gradient_exchange + optimizer; }
};

class StepTimer {
 public:
  // Keeps all by reference.
  StepTimer(const Bounds& bounds, const Transfers& transfers, const cost::Cluster& cluster,
            Rounds& rounds)
      : bounds_(bounds), transfers_(transfers), cluster_(cluster), rounds_(rounds) {}

  // Returns the time and memory of a step with these parts, without a lower bound. Estimates of
  // more seconds than `exact_below` may be too low.
  Estimate time(PricedStages& stages, const std::vector<PartBlocks>& parts,
                double exact_below) const;

  // Returns whether stages are heterogeneous and have one part each, by a
  // schedule that does not split backward passes: their sections are then timed
  // one by one (search/model/pipeline/row_time.h).
  bool times_sections(const Choice& choice) const;

  // Returns the time of a step of such a pipeline. `costs`: of the stages.
  RowStep time_row_step(const PricedStages& stages, const std::vector<StageCosts>& costs,
                        const std::vector<PartBlocks>& parts) const;

 private:
  // The per-step epilogue.
  struct Epilogue {
    double gradient_exchange = 0;  // exposed
    double optimizer = 0;          // after the exchange, with the all-reduce of the norm
  };
  Epilogue epilogue_of(const PricedStages& stages, const std::vector<StageCosts>& costs) const;
  // Return the passes that the bubble depends on.
  Passes heterogeneous_passes(const PricedStages& stages, const std::vector<StageCosts>& costs,
                              const std::vector<PartBlocks>& parts) const;
  Passes homogeneous_passes(const PricedStages& stages, const Estimate& estimate) const;
  // Sums over the costs of all stages.
  struct StageSums {
    double forward = 0, weight_gradients = 0, pass = 0;  // seconds of a microbatch
    SlowestStage slowest;
  };
  static StageSums sums_of(const std::vector<StageCosts>& costs);
  // Sets the costs by which orders are searched. Returns the seconds by which a step of these
  // orders exceeds the lower bound of its bubble; 0 for estimates of more than `exact_below`.
  double search_orders(const Choice& choice, const Passes& passes, const StageSums& sums,
                       double exact_below, Estimate& result) const;
  // Returns the bubble of a schedule that runs in rounds where parts are not identical, or messages
  // are longer than half of their passes; else 0.
  // `slowest`: seconds of the slowest stage's passes of all microbatches.
  double bubble_in_rounds(PricedStages& stages, const std::vector<PartBlocks>& parts,
                          const Passes& passes, double slowest) const;

  const Bounds& bounds_;
  const Transfers& transfers_;
  const cost::Cluster& cluster_;
  Rounds& rounds_;
  mutable SearchedOrders orders_;
};

}  // namespace perigee::search
