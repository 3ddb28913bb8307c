#include "search/model/bounds.h"

#include <algorithm>

#include "base/infinity.h"
#include "schedule/description.h"

namespace perigee::search {
namespace {}  // namespace

WholeModel Bounds::whole(const Choice& choice, const Layers& layers) const {
  const auto blocks = static_cast<double>(in_.folded.blocks.size());
  WholeModel whole;
  auto& all = whole.passes;
  const auto add = [&](const Layer& layer, double times) {
    const auto passes = in_.prices.passes(choice, layer, layers);
    all.forward += times * passes.forward;
    all.backward += times * (passes.backward - layer.gradient);
    all.weights += times * layer.gradient;
  };
  add(layers.prologue, 1);
  add(layers.block, blocks);
  add(layers.epilogue, 1);
  all.recomputed = blocks * layers.repeated;
  all.transfer = in_.transfers.mean_message(choice, layers);
  if (choice.zero >= 2 && choice.parts() > 1) {
    const auto& exchanges = in_.prices.exchanges(choice, layers, {});
    whole.forward_gathers = exchanges.prologue.gather_forward +
                            blocks * exchanges.block.gather_forward +
                            exchanges.epilogue.gather_forward;
    whole.backward_gathers = blocks * exchanges.block.gather_backward +
                             exchanges.epilogue.gather_backward;
    whole.block_reduction = exchanges.block.reduce;
  }
  return whole;
}

double Bounds::homogeneous(const Choice& choice, const WholeModel& whole) const {
  const auto blocks = static_cast<double>(in_.folded.blocks.size());
  const auto stages = static_cast<double>(choice.pipe);
  const double parts = stages * static_cast<double>(choice.chunks);
  // Transfers on the units' stream in a pass; a part's last reduction may be hidden.
  const double reductions = std::max(0.0, blocks - parts) * whole.block_reduction;
  const auto& all = whole.passes;
  const double pass = std::max(all.forward, whole.forward_gathers) +
                      std::max(all.backward + all.weights, whole.backward_gathers + reductions);
  const double longest = pass / stages;
  return longest * static_cast<double>(choice.microbatches) +
         bubble_seconds(choice, all, pass, {longest});
}

StageRates Bounds::rates(const Choice& own, const Layers& layers, int64_t first_rank) const {
  StageRates rates;
  rates.recomputed = layers.repeated;
  const StageRanks ranks{equivalent_rank(in_.cluster, first_rank), in_.cluster.ranks() - 1};
  const bool in_parts = own.zero >= 2 && own.parts() > 1;
  const auto* exchanged = in_parts ? &in_.prices.exchanges(own, layers, ranks) : nullptr;
  const auto set = [&](double* to, const Layer& layer, const LayerExchange* exchange,
                       bool gathers_twice) {
    const auto passes = in_.prices.passes(own, layer, layers);
    for (size_t way = 0; way < StageRates::kWays; ++way) {
      const bool forward_gathers = exchange && way % 2 == 1;
      const bool backward_gathers = exchange && way / 2 == 1;
      to[way] = (forward_gathers ? exchange->gather_forward : passes.forward) +
                (!backward_gathers ? passes.backward
                 : gathers_twice   ? exchange->gather_backward
                                   : 0);
    }
  };
  // A prologue that is tied to the epilogue need not be re-gathered.
  set(rates.prologue, layers.prologue, exchanged ? &exchanged->prologue : nullptr, false);
  set(rates.block, layers.block, exchanged ? &exchanged->block : nullptr, true);
  set(rates.epilogue, layers.epilogue, exchanged ? &exchanged->epilogue : nullptr, true);
  return rates;
}

double Bounds::heterogeneous(const Choice& choice, const std::vector<const StageRates*>& stages,
                             double transfer_seconds) const {
  const auto count = stages.size();
  const auto blocks = static_cast<double>(in_.rules.blocks());
  const auto ends = [&](size_t stage, size_t way) {
    return (stage == 0 ? stages[stage]->prologue[way] : 0) +
           (stage + 1 == count ? stages[stage]->epilogue[way] : 0);
  };
  double longest = 0, sum = 0, fastest = kInfinity, recomputed = 0;
  for (size_t way = 0; way < StageRates::kWays; ++way) {
    // The bound has equally slow stages that share all blocks.
    double work = blocks, speed = 0;
    for (size_t stage = 0; stage < count; ++stage) {
      const double block = stages[stage]->block[way], more = ends(stage, way);
      work += more / block;
      speed += 1 / block;
      longest = std::max(longest, more + (choice.chunks > 1 ? 0 : block));
    }
    if (speed < kInfinity) longest = std::max(longest, work / speed);
  }
  for (size_t stage = 0; stage < count; ++stage) {
    const double block = stages[stage]->block[0];
    sum += block + ends(stage, 0);
    fastest = std::min(fastest, block);
    recomputed = std::max(recomputed, stages[stage]->recomputed);
  }
  sum += (blocks - static_cast<double>(count)) * fastest;
  const double busy = longest * static_cast<double>(choice.microbatches);
  if (!schedule::describe(choice.schedule).warms_up) return busy;
  // A microbatch's way through all stages and back, without recomputation, which overlaps with it.
  return std::max(busy, sum - recomputed * (blocks - 1) + transfer_seconds);
}

double Bounds::heterogeneous(const Choice& choice, const Layers& layers) const {
  const auto places = places_of_stages(choice, layers, in_.tables, in_.cluster, in_.limits);
  if (!places) return 0;
  std::vector<StageRates> rates;
  for (const auto& place : places->list) {
    rates.push_back(this->rates(place.choice, *place.layers, place.ranks.first));
  }
  std::vector<const StageRates*> stages;
  for (const int index : places->of) stages.push_back(&rates[static_cast<size_t>(index)]);
  return heterogeneous(choice, stages, in_.transfers.round_trip(choice, *places));
}

}  // namespace perigee::search
