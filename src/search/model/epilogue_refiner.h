// Accounts for everything that a cut is not chosen by, above all the per-step epilogue: the cut
// with the fastest slowest stage need not have the fastest step.
#pragma once

#include "search/cut/heterogeneous_cut.h"
#include "search/model/cutter.h"
#include "search/model/estimate.h"
#include "search/model/stage/part_rules.h"
#include "search/model/stage/priced_stages.h"
#include "search/model/step_timer.h"
#include "search/model/transfers.h"

namespace perigee::search {

class EpilogueRefiner {
 public:
  // Of more than a few cuts (has_few_cuts()) others are looked at where this share of a step, or
  // more, may be saved.
  static constexpr double kLeastGain = 1e-3;

  // Keeps its arguments by reference.
  EpilogueRefiner(const PartRules& rules, const Transfers& transfers, const StepTimer& timer)
      : rules_(rules), transfers_(transfers), timer_(timer) {}

  // `result`: the estimate of `cut`, with a lower bound of the passes of any cut as its lower
  // bound. `homogeneous`: whether the stages are. Sets the lower bound of a step of any cut, and
  // replaces the estimate by the fastest step: of all cuts where there are few, else a local
  // optimum over moves of blocks between stages of one part.
  void refine(PricedStages& stages, const CutParts& cut, bool homogeneous, double exact_below,
              Estimate& result) const;

 private:
  // Returns the lower bound of the per-step epilogue of any cut, in seconds.
  double least_seconds(PricedStages& stages) const;
  // Replaces the estimate where it finds a cut with a faster step; `row` has the parts as
  // its stages.
  void look(PricedStages& stages, const HeterogeneousRow& row, const CutParts& cut,
            double exact_below, Estimate& result) const;

  const PartRules& rules_;
  const Transfers& transfers_;
  const StepTimer& timer_;
};

}  // namespace perigee::search
