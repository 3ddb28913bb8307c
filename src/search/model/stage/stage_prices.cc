#include "search/model/stage/stage_prices.h"

#include <algorithm>
#include <utility>

#include "schedule/schedule.h"
#include "search/model/pipeline/pipeline.h"
#include "search/model/stage/stage_sum.h"

namespace perigee::search {
namespace {

// The least bytes that accumulating a gradient moves: read two, write one.
constexpr double kAccumulated = 3;

}  // namespace

const Exchanges& StagePrices::exchanges(const Choice& choice, const Layers& layers,
                                        const StageRanks& ranks) const {
  const std::tuple key{
      layers.parameters, choice.tensor, choice.expert, choice.context,
      choice.data,       choice.pipe,   choice.zero,   ranks.opposite < 0 ? -1 : ranks.first};
  const auto known = exchanges_.find(key);
  if (known != exchanges_.end()) return known->second;
  auto made = exchanges_of(choice, layers, costs_, ranks);
  return exchanges_.emplace(key, std::move(made)).first->second;
}

LayerPasses StagePrices::passes(const Choice& choice, const Layer& layer,
                                const Layers& layers) const {
  const auto& device = costs_.cluster().devices[static_cast<size_t>(layers.kind)];
  const auto parts = static_cast<double>(choice.parts());
  // Gradients of later microbatches are added, to the rank's part of them or to all.
  const double added = choice.zero >= 2 ? layer.gradients / parts : layer.gradients;
  const double later = 1 - 1 / static_cast<double>(choice.microbatches);
  const double accumulate = later * kAccumulated * added /
                            (device.bandwidth * device.memory_efficiency);
  // Gathered weights are cast before, by each rank its shard; sharded masters are cast once a step.
  const double cast = choice.zero == 3 ? 1 - 1 / parts : choice.zero > 0 && layers.masters ? 1 : 0;
  // In a pipeline both passes cast (compile::recast_parameters).
  const double backward_cast = choice.pipe > 1 ? std::max(layer.forward_cast, layer.backward_cast)
                                               : layer.backward_cast;
  return {layer.forward - cast * layer.forward_cast,
          layer.backward - layer.backward_cast + (1 - cast) * backward_cast + accumulate};
}

double StagePrices::saved_bytes(const Choice& choice, const Layer& layer, const Layers& layers) {
  const bool in_parts = choice.zero == 3 || (choice.zero > 0 && layers.masters);
  return layer.saved - (choice.pipe > 1 || in_parts ? layer.low : 0);
}

StageCosts StagePrices::stage(const StagePlace& place, const Layers& layers,
                              const PartBlocks& part) const {
  const auto& choice = place.choice;
  const auto& exchanges = this->exchanges(choice, layers, place.ranks);
  StageSum sum({.choice = choice,
                .layers = layers,
                .exchanges = exchanges,
                .part = part,
                .device = costs_.cluster().devices[static_cast<size_t>(layers.kind)]});
  const auto add = [&](const Layer& layer, const LayerExchange& exchange, int times) {
    sum.add(layer, exchange, passes(choice, layer, layers), times);
  };
  if (part.has_prologue) add(layers.prologue, exchanges.prologue, 1);
  if (!folded_.blocks.empty() && part.length() > 0) {
    add(layers.block, exchanges.block, part.length());
  }
  if (part.has_epilogue) add(layers.epilogue, exchanges.epilogue, 1);
  return sum.costs(passes(choice, layers.epilogue, layers));
}

double StagePrices::bytes(const Choice& choice, const StageCosts& stage,
                          int64_t later_stages) const {
  const bool first_stage = later_stages == choice.pipe - 1;
  double flight = in_flight(choice, later_stages) * stage.in_flight_bytes;
  // A part that differs from the others need not share with them.
  if (choice.chunks > 1 && splits_backward(choice.schedule)) {
    if (first_stage) {
      const auto [first, second] = in_flight_on_first_stage(choice);
      flight = std::min(flight,
                        first * stage.first_in_flight_bytes + second * stage.last_in_flight_bytes);
    }
  } else if (choice.chunks > 1 && first_stage) {
    const auto [first, others] = rounds_.in_flight(choice, true);
    const double rest = std::max(stage.middle_in_flight_bytes, stage.last_in_flight_bytes);
    flight = std::min(flight, first * stage.first_in_flight_bytes + others * rest);
  } else if (choice.chunks > 1 && later_stages == 0) {
    const auto [last, others] = rounds_.in_flight(choice, false);
    const double rest = std::max(stage.first_in_flight_bytes, stage.middle_in_flight_bytes);
    flight = std::min(flight, last * stage.last_in_flight_bytes + others * rest);
  }
  return std::max(stage.fixed_bytes() + stage.prefetched_bytes + flight, stage.optimizer_bytes);
}

}  // namespace perigee::search
