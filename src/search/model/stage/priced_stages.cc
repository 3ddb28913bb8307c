#include "search/model/stage/priced_stages.h"

#include <algorithm>

namespace perigee::search {

PricedStages::PricedStages(const Choice& choice, const Layers& layers, Places places,
                           const StagePrices& prices, int blocks)
    : choice_(choice),
      layers_(layers),
      places_(std::move(places)),
      prices_(prices),
      blocks_(blocks),
      plain_(places_.list.size() * 4 * static_cast<size_t>(blocks + 1)) {}

const StageCosts& PricedStages::costs(int stage, const PartBlocks& part) {
  const int ends = (part.has_prologue ? 1 : 0) + (part.has_epilogue ? 2 : 0);
  const auto index = static_cast<size_t>(
      (places_.of[static_cast<size_t>(stage)] * 4 + ends) * (blocks_ + 1) + part.length());
  auto& entry = part.recomputed_blocks == 0 ? plain_[index]
                                            : recomputing_[{index, part.recomputed_blocks}];
  if (!entry) entry = &made_.emplace_back(make(places_.at(stage), part));
  return *entry;
}

StageCosts PricedStages::make(const StagePlace& place, const PartBlocks& part) const {
  const auto& own = *place.layers;
  if (part.recomputed_blocks == 0) return prices_.stage(place, own, part);
  auto mixed = between(own, *own.recomputing,
                       static_cast<double>(part.recomputed_blocks) / part.length());
  mixed.working = own.recomputing->working;
  if (part.recomputed_blocks < part.length()) {
    mixed.working = std::max(mixed.working, own.working);
  }
  return prices_.stage(place, mixed, part);
}

double PricedStages::bytes(int stage, const PartBlocks& part) {
  return bytes_of(stage, costs(stage, part));
}

double PricedStages::bytes_of(int stage, const StageCosts& costs) const {
  return prices_.bytes(choice_, costs, choice_.pipe - 1 - stage);
}

}  // namespace perigee::search
