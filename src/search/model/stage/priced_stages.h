// A choice that is being estimated: the costs of its stages, by place and blocks, each
// computed once.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "search/model/stage/part_rules.h"
#include "search/model/stage/places.h"
#include "search/model/stage/stage_prices.h"

namespace perigee::search {

class PricedStages {
 public:
  // Keeps all but `places` by reference. `blocks`: of the model.
  PricedStages(const Choice& choice, const Layers& layers, Places places, const StagePrices& prices,
               int blocks);

  const Choice& choice() const { return choice_; }
  int count() const { return static_cast<int>(choice_.pipe); }
  // Returns the choice's layers; of any stage where stages are heterogeneous.
  const Layers& layers() const { return layers_; }
  const Places& places() const { return places_; }
  const StagePlace& place(int stage) const { return places_.at(stage); }

  // Returns the costs of a part on a stage. Blocks are identical: only their number counts, the
  // number of recomputed ones, and whether the part has the prologue or the epilogue.
  const StageCosts& costs(int stage, const PartBlocks& part);

  // Returns the bytes of a stage of one part.
  double bytes(int stage, const PartBlocks& part);

  // Returns the bytes of a stage of any parts, which `costs` joins.
  double bytes_of(int stage, const StageCosts& costs) const;

 private:
  StageCosts make(const StagePlace& place, const PartBlocks& part) const;

  const Choice& choice_;
  const Layers& layers_;
  const Places places_;
  const StagePrices& prices_;
  const int blocks_;
  std::deque<StageCosts> made_;
  std::vector<const StageCosts*> plain_;  // without recomputed blocks; by place, ends and length
  std::map<std::pair<size_t, int>, const StageCosts*>
      recomputing_;  // by these and recomputed blocks
};

}  // namespace perigee::search
