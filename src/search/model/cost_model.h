// The cost model: time and memory of a choice, from the tables of its layers. The search proves its
// optimum in this model; the best plans are then compiled and simulated.
#pragma once

#include <limits>
#include <optional>

#include "search/layers/layers.h"
#include "search/model/bounds.h"
#include "search/model/cutter.h"
#include "search/model/epilogue_refiner.h"
#include "search/model/estimate.h"
#include "search/model/limits.h"
#include "search/model/pipeline/rounds.h"
#include "search/model/stage/part_rules.h"
#include "search/model/stage/places.h"
#include "search/model/stage/stage_prices.h"
#include "search/model/step_timer.h"
#include "search/model/transfers.h"

namespace perigee::search {

class CostModel {
 public:
  // All kept by reference but the limits.
  CostModel(const Folded& folded, LayerTables& tables, simulate::OpCosts& costs, Limits limits);
  CostModel(const CostModel&) = delete;
  CostModel& operator=(const CostModel&) = delete;

  // Return a lower bound of the seconds of any cut into the choice's stages; 0 where a
  // heterogeneous stage has no table. `whole`: of the choice, with any schedule.
  double lower_bound(const Choice& choice, const Layers& layers) const;
  double lower_bound(const Choice& choice, const Layers& layers, const WholeModel& whole) const;

  // Returns the best cut of the blocks into the choice's stages under the memory limit, or nothing
  // where no cut fits; `least_bytes` is then the least memory that the choice needs, or unchanged
  // where that is unknown. Where there are few cuts (has_few_cuts()) it is the best of all. Of more
  // cuts into homogeneous stages it is the one with the fastest microbatches (solve/, exact), or,
  // where the per-step epilogue is more than EpilogueRefiner::kLeastGain of a step, a local optimum
  // over moves of blocks. `layers`: of the choice; of any stage where stages are heterogeneous.
  // Estimates of more seconds than `exact_below` may be too low.
  std::optional<Estimate> estimate(
      const Choice& choice, const Layers& layers, double& least_bytes,
      double exact_below = std::numeric_limits<double>::infinity()) const;

  // The blocks that parts may have, lower bounds, and messages between stages.
  const PartRules& rules() const { return rules_; }
  const Bounds& bounds() const { return bounds_; }
  const Transfers& transfers() const { return transfers_; }

 private:
  const Limits limits_;
  LayerTables& tables_;
  const cost::Cluster& cluster_;
  Rounds rounds_;
  const PartRules rules_;
  const StagePrices prices_;
  const Transfers transfers_;
  const Bounds bounds_;
  const StepTimer timer_;
  const Cutter cutter_;
  const EpilogueRefiner refiner_;
};

}  // namespace perigee::search
