// Lower bounds of the seconds of a choice's step, for all cuts of its blocks into stages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "search/model/limits.h"
#include "search/model/pipeline/pipeline.h"
#include "search/model/stage/part_rules.h"
#include "search/model/stage/places.h"
#include "search/model/stage/stage_prices.h"
#include "search/model/transfers.h"

namespace perigee::search {

// Seconds of a microbatch through the whole model, which all schedules of a choice's axes share.
struct WholeModel {
  Passes passes;
  // Of the units' stream: gathering in the forward pass and in the backward pass, and the reduction
  // of one block's gradients.
  double forward_gathers = 0, backward_gathers = 0, block_reduction = 0;
};

// Lower bounds of a stage's seconds in one place: for each of the two passes either its compute or
// its transfers on the units' stream, in all four combinations.
struct StageRates {
  static constexpr size_t kWays = 4;
  double prologue[kWays] = {}, block[kWays] = {}, epilogue[kWays] = {};
  double recomputed = 0;  // of a block's backward pass
};

class Bounds {
 public:
  // Where the model's blocks may be and what they cost; all kept by reference.
  struct Input {
    const Folded& folded;
    LayerTables& tables;
    const cost::Cluster& cluster;
    const Limits& limits;
    const PartRules& rules;
    const StagePrices& prices;
    const Transfers& transfers;
  };
  explicit Bounds(const Input& input) : in_(input) {}

  WholeModel whole(const Choice& choice, const Layers& layers) const;

  // Returns the bound for homogeneous stages; quick. `whole`: of the choice, with any schedule.
  double homogeneous(const Choice& choice, const WholeModel& whole) const;

  // Returns the rates of a stage whose first rank is `first_rank`. `own`: choice_of_stage().
  StageRates rates(const Choice& own, const Layers& layers, int64_t first_rank) const;

  // Returns the bound for heterogeneous stages with these rates. `transfer_seconds`: of all
  // messages of a microbatch, one after the other.
  double heterogeneous(const Choice& choice, const std::vector<const StageRates*>& stages,
                       double transfer_seconds) const;
  // Returns the bound for the choice's own heterogeneous stages; 0 where a stage has no table.
  double heterogeneous(const Choice& choice, const Layers& layers) const;

 private:
  Input in_;
};

}  // namespace perigee::search
