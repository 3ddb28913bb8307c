// Accounts for the per-step epilogue of homogeneous cuts: the cut with the fastest microbatches need
// not have the fastest step.
#pragma once

#include "search/model/cutter.h"
#include "search/model/estimate.h"
#include "search/model/stage/part_rules.h"
#include "search/model/stage/priced_stages.h"
#include "search/model/step_timer.h"
#include "search/model/transfers.h"

namespace perigee::search {

class EpilogueRefiner {
 public:
  // Cuts are refined where this share of a step, or more, may be saved.
  static constexpr double kLeastGain = 1e-3;

  // Keeps its arguments by reference.
  EpilogueRefiner(const PartRules& rules, const Transfers& transfers, const StepTimer& timer)
      : rules_(rules), transfers_(transfers), timer_(timer) {}

  // `result`: the estimate of `cut`, with Bounds::homogeneous as its lower bound. Sets the lower
  // bound of a step of any homogeneous cut, and replaces the estimate where moves of blocks lead to a
  // cut with a faster step.
  void refine(PricedStages& stages, const CutParts& cut, double exact_below,
              Estimate& result) const;

 private:
  // Returns the lower bound of the per-step epilogue of any cut, in seconds.
  double least_seconds(PricedStages& stages) const;
  // Replaces the estimate where it finds a cut with a faster step, in moves from `cut`.
  void move_blocks(PricedStages& stages, const CutParts& cut, double exact_below,
                   Estimate& result) const;

  const PartRules& rules_;
  const Transfers& transfers_;
  const StepTimer& timer_;
};

}  // namespace perigee::search
