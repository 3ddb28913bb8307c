// The costs of a stage, or of a part of one, from the tables of its layers.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "search/layers/exchange.h"
#include "search/layers/layers.h"
#include "search/model/pipeline/rounds.h"
#include "search/model/stage/part_rules.h"
#include "search/model/stage/places.h"
#include "search/model/stage/stage_costs.h"
#include "simulate/op_cost.h"

namespace perigee::search {

// Seconds of compute of a microbatch's forward and backward pass through a layer.
struct LayerPasses {
  double forward = 0, backward = 0;
};

class StagePrices {
 public:
  // Keeps all by reference.
  StagePrices(const Folded& folded, simulate::OpCosts& costs, Rounds& rounds)
      : folded_(folded), costs_(costs), rounds_(rounds) {}

  // Returns the costs of a part at this place. `layers`: the place's, or between these and the
  // recomputed ones.
  StageCosts stage(const StagePlace& place, const Layers& layers, const PartBlocks& part) const;

  // Returns the bytes of a rank of a stage with `later_stages` stages after it.
  double bytes(const Choice& choice, const StageCosts& stage, int64_t later_stages) const;

  // Returns the seconds of a layer's passes, with casts and the accumulation of gradients.
  LayerPasses passes(const Choice& choice, const Layer& layer, const Layers& layers) const;

  // Returns the bytes that a microbatch's forward pass through a layer saves for its backward pass.
  static double saved_bytes(const Choice& choice, const Layer& layer, const Layers& layers);

  // Returns the seconds of the exchanges of a stage on these ranks; computed once for choices with
  // the same axes.
  const Exchanges& exchanges(const Choice& choice, const Layers& layers,
                             const StageRanks& ranks) const;

 private:
  const Folded& folded_;
  simulate::OpCosts& costs_;
  Rounds& rounds_;
  // By Layers::parameters, tensor, expert, context, data, pipe, zero, and the first rank.
  mutable std::map<std::tuple<int, int64_t, int64_t, int64_t, int64_t, int64_t, int, int64_t>,
                   Exchanges>
      exchanges_;
};

}  // namespace perigee::search
