#include "search/model/model.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <tuple>

#include "base/error.h"
#include "schedule/description.h"
#include "schedule/schedule.h"

namespace perigee::search {
namespace {

using cost::CollectiveKind;

// The least bytes that accumulating a gradient moves: read two, write one.
constexpr double kAccumulated = 3;

// Gradients that share a bucket are reduced when the last of them is there. `layers` stand in the
// order of the forward pass.
void end_with_bucket(std::vector<Passing>& layers, double buckets) {
  double reduce = 0;
  for (const auto& layer : layers) reduce += layer.times * layer.reduce;
  const double last = reduce / std::max(1.0, buckets);
  if (last <= layers.front().last) return;
  for (auto& layer : layers) layer.reduce *= 1 - last / reduce;
  layers.front().last = last;
}

}  // namespace

int Model::blocks() const { return static_cast<int>(std::max<size_t>(1, folded_.blocks.size())); }

const Exchanges& Model::exchanges(const Choice& choice, const Layers& layers,
                                  const Ground& ground) const {
  const std::tuple key{
      layers.parameters, choice.tensor, choice.expert, choice.context,
      choice.data,       choice.pipe,   choice.zero,   ground.other < 0 ? -1 : ground.first};
  const auto known = known_.find(key);
  if (known != known_.end()) return known->second;
  auto made = exchanges_of(choice, layers, costs_, ground);
  return known_.emplace(key, std::move(made)).first->second;
}

std::pair<double, double> Model::passes(const Choice& choice, const Layer& layer,
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
  // In a pipeline both passes cast (compile::cast_again).
  const double backward_seconds = choice.pipe > 1
                                      ? std::max(layer.forward_cast, layer.backward_cast)
                                      : layer.backward_cast;
  return {layer.forward - cast * layer.forward_cast,
          layer.backward - layer.backward_cast + (1 - cast) * backward_seconds + accumulate};
}

double Model::saved(const Choice& choice, const Layer& layer, const Layers& layers) {
  const bool in_parts = choice.zero == 3 || (choice.zero > 0 && layers.masters);
  return layer.saved - (choice.pipe > 1 || in_parts ? layer.low : 0);
}

StageCosts Model::stage(const Place& place, const Layers& layers, const Blocks& part) const {
  const auto& choice = place.choice;
  const auto parts = static_cast<double>(choice.parts());
  const auto& exchanged = exchanges(choice, layers, place.ground);
  StageCosts stage;
  double buckets = 0, weights = 0, read = 0, gradients = 0, states = 0, transient = 0, step = 0,
         norm = 0, gather = 0, saved = 0, operands = 0, largest = 0, unit = 0;
  std::vector<Passing> forward, backward;
  const auto add = [&](const Layer& layer, const LayerExchange& exchange, int times) {
    const auto [forward_seconds, backward_seconds] = passes(choice, layer, layers);
    forward.push_back({.compute = forward_seconds,
                       .communication = layer.forward_communication,
                       .gather = exchange.gather_forward,
                       .times = times});
    backward.push_back({.compute = backward_seconds + exchange.early,
                        .communication = layer.communication - layer.forward_communication,
                        .gather = exchange.gather_backward,
                        .reduce = exchange.reduce,
                        .last = exchange.last,
                        .tail = layer.tail,
                        .times = times,
                        .buckets = choice.zero < 3 ? &layer.buckets : nullptr});
    stage.forward += times * forward_seconds;
    stage.backward += times * backward_seconds;
    stage.gradient += times * layer.gradient;
    stage.tensor += times * layer.communication;
    stage.forward_tensor += times * layer.forward_communication;
    saved += times * this->saved(choice, layer, layers);
    operands += times * layer.operands;
    weights += times * layer.weights;
    gradients += times * layer.gradients;
    states += times * layer.states;
    transient += times * layer.transient;
    for (const auto& flat : layer.flats) read += times * flat.gathered;
    for (const auto& flat : layer.flats) {
      largest = std::max(largest, flat.largest);
      if (flat.pieces > 0) unit = std::max(unit, flat.gradients / flat.pieces);
    }
    step += times * layer.step;
    norm += times * layer.norm;
    gather += times * exchange.gather;
    buckets += times * exchange.buckets;
  };
  const bool first = part.first, last = part.last;
  if (first) add(layers.first, exchanged.first, 1);
  if (!folded_.blocks.empty() && part.length() > 0) {
    add(layers.block, exchanged.block, part.length());
  }
  if (last) add(layers.last, exchanged.last, 1);
  const double share = choice.zero > 0 ? 1 / parts : 1;
  stage.optimizer = share * (step - norm);
  stage.norm = share * norm;
  stage.meets = exchanged.norm;

  if (!exchanged.none()) {
    if (choice.zero < 3) end_with_bucket(backward, buckets);
    std::reverse(backward.begin(), backward.end());
    if (layers.tied && first && last && choice.zero == 3) {
      // The last product reads the first layer's unit, which is there from then on; the last unit,
      // which has few parameters of its own, is gathered after it.
      const auto& product = layers.last;
      backward.front().compute = 0;
      backward.front().communication = 0;
      backward.back().gather = 0;
      backward.insert(backward.begin(),
                      {.compute = passes(choice, product, layers).second,
                       .communication = product.communication - product.forward_communication,
                       .gather = exchanged.first.gather_backward});
    }
    const double backward_seconds = seconds_of_pass(backward, exchanged.contends) +
                                    (choice.zero < 3 ? exchanged.least : 0);
    if (choice.zero >= 2) {
      const double forward_seconds = seconds_of_pass(forward, exchanged.contends);
      stage.exchange = forward_seconds + backward_seconds - stage.forward - stage.backward;
      if (choice.zero == 2) stage.tail = backward_seconds - stage.backward;
      stage.forward = forward_seconds;
      stage.backward = backward_seconds;
    } else {
      // The last microbatch's backward pass hides a part of the exchange.
      stage.once = backward_seconds - stage.backward;
    }
    // New weights are gathered while the next bucket is stepped.
    stage.optimizer = std::max(gather, stage.optimizer + gather / std::max(1.0, buckets));
  }
  if (first || last) stage.once += exchanged.tied;
  const auto& device = costs_.cluster().devices[static_cast<size_t>(layers.kind)];
  const double held = choice.zero >= 1 ? states / parts : states;
  // Copies to the host and from it overlap with each other and with the optimizer.
  if (choice.offload) stage.optimizer = std::max(stage.optimizer, held / device.host);
  const auto gathered = [](const Layer& layer) {
    double bytes = 0;
    for (const auto& flat : layer.flats) bytes += flat.gathered;
    return bytes;
  };
  // Sharded masters are stored beside unsharded low-precision weights.
  const double kept = choice.zero >= 3                    ? weights / parts
                      : choice.zero > 0 && layers.masters ? read + weights / parts
                                                          : weights;
  stage.resident = kept + (choice.zero >= 2 ? gradients / parts : gradients) +
                   (choice.zero == 1 ? gradients / parts : 0) + (choice.offload ? 0 : held);
  stage.step = stage.resident + (choice.zero >= 1 ? transient / parts : transient);
  stage.working = layers.working +
                  (choice.zero >= 3 ? 2 * gathered(layers.block) + layers.block.gradients +
                                          gathered(layers.first)
                                    : 0) +
                  (choice.zero == 2 ? std::min(gradients, 2 * unit) + gradients / parts : 0);
  // A later microbatch's gradient is allocated beside the sum that it is added to.
  if (choice.microbatches > 1) stage.working += largest;
  // Receive buffers are prefetched (compile::share_landings).
  if (choice.pipe > 1) stage.prefetched = 2 * layers.crossing;
  // The input from the previous stage is saved; the stage's own output stays after it is sent.
  stage.flight = saved + (first ? 0 : layers.entering);
  if (choice.pipe > 1 && splits_backward(choice.schedule)) {
    // No stage waits for the first stage's input gradients: its whole backward pass is deferred, and
    // reads the received gradient.
    if (first) stage.flight += layers.crossing;
    stage.flight = std::max(stage.flight, operands);
    // A unit with sharded gradients stays unsharded until all of them are computed: those of norms are
    // computed with input gradients, those of weights later. On the first stage all are computed at once.
    if (choice.zero >= 2 && !first) stage.flight += gradients;
  }
  return stage;
}

double Model::transfer(const Choice& choice, const Layers& layers) const {
  if (choice.pipe == 1) return 0;
  const auto ranks = choice.tensor * choice.expert * choice.parts();
  double seconds = 0;
  for (const auto& [sender, count] : senders(ranks, choice.pipe)) {
    const std::vector<int64_t> pair{sender, sender + ranks};
    seconds += static_cast<double>(count) *
               costs_
                   .collective(
                       {.kind = CollectiveKind::message, .ranks = pair, .bytes = layers.crossing})
                   .seconds;
  }
  return seconds / static_cast<double>(choice.pipe - 1);
}

const std::map<int64_t, int64_t>& Model::senders(int64_t ranks, int64_t stages) const {
  const auto [entry, added] = senders_.try_emplace({ranks, stages});
  if (!added) return entry->second;
  std::map<int, int64_t> by_level;
  for (int64_t stage = 0; stage + 1 < stages; ++stage) {
    const auto& cluster = costs_.cluster();
    const auto first = stage * ranks, last = first + ranks - 1;
    const int of_first = cluster.level(first, first + ranks);
    const int of_last = cluster.level(last, last + ranks);
    const auto farther = of_last > of_first ? last : first;
    ++entry->second[by_level.try_emplace(std::max(of_first, of_last), farther).first->second];
  }
  return entry->second;
}

double Model::bytes_of(const Choice& choice, const StageCosts& stage, int64_t successors) const {
  double flight = in_flight(choice, successors) * stage.flight;
  // A part that differs from the others need not share with them.
  if (choice.chunks > 1 && splits_backward(choice.schedule)) {
    if (successors == choice.pipe - 1) {
      const auto [first, second] = in_flight_on_first_stage(choice);
      flight = std::min(flight, first * stage.first + second * stage.last);
    }
  } else if (choice.chunks > 1 && successors == choice.pipe - 1) {
    const auto [first, others] = rounds_.in_flight(choice, true);
    const double rest = std::max(stage.middle, stage.last);
    flight = std::min(flight, first * stage.first + others * rest);
  } else if (choice.chunks > 1 && successors == 0) {
    const auto [last, others] = rounds_.in_flight(choice, false);
    const double rest = std::max(stage.first, stage.middle);
    flight = std::min(flight, last * stage.last + others * rest);
  }
  return std::max(stage.fixed() + stage.prefetched + flight, stage.step);
}

Model::Whole Model::whole(const Choice& choice, const Layers& layers) const {
  const auto count = static_cast<double>(folded_.blocks.size());
  Whole whole;
  auto& all = whole.passes;
  const auto add = [&](const Layer& layer, double times) {
    const auto [forward_seconds, backward_seconds] = passes(choice, layer, layers);
    all.forward += times * forward_seconds;
    all.backward += times * (backward_seconds - layer.gradient);
    all.weights += times * layer.gradient;
  };
  add(layers.first, 1);
  add(layers.block, count);
  add(layers.last, 1);
  all.recomputed = count * layers.repeated;
  all.transfer = transfer(choice, layers);
  if (choice.zero >= 2 && choice.parts() > 1) {
    const auto& of = exchanges(choice, layers, {});
    whole.gathers = of.first.gather_forward + count * of.block.gather_forward +
                    of.last.gather_forward;
    whole.exchanges = count * of.block.gather_backward + of.last.gather_backward;
    whole.reduce = of.block.reduce;
  }
  return whole;
}

double Model::lower_bound(const Choice& choice, const Whole& whole) const {
  const auto count = static_cast<double>(folded_.blocks.size());
  const auto stages = static_cast<double>(choice.pipe);
  const double parts = stages * static_cast<double>(choice.chunks);
  // Transfers on the units' stream in a pass; a part's last reduction may be hidden.
  const double reductions = std::max(0.0, count - parts) * whole.reduce;
  const auto& all = whole.passes;
  const double pass = std::max(all.forward, whole.gathers) +
                      std::max(all.backward + all.weights, whole.exchanges + reductions);
  const double longest = pass / stages;
  return longest * static_cast<double>(choice.microbatches) +
         bubble_seconds(choice, all, pass, {longest});
}

std::optional<Estimate> Model::estimate(const Choice& choice, const Layers& layers,
                                        double& least_bytes, double worth) const {
  const auto blocks = this->blocks();
  const auto placed = places(choice, layers);
  if (!placed) return std::nullopt;
  const auto& places = *placed;
  // Blocks are identical: only a part's place and length count, its recomputed blocks, and whether
  // it has the first or the last.
  std::deque<StageCosts> made;
  std::vector<const StageCosts*> known(places.list.size() * 4 * static_cast<size_t>(blocks + 1));
  std::map<std::pair<size_t, int>, const StageCosts*> known_recomputed;
  const auto stage_of = [&](int at, const Blocks& part) -> const StageCosts& {
    const int ends = (part.first ? 1 : 0) + (part.last ? 2 : 0), length = part.length();
    const auto index = static_cast<size_t>(
        (places.of[static_cast<size_t>(at)] * 4 + ends) * (blocks + 1) + length);
    auto& entry = part.recomputed_blocks == 0 ? known[index]
                                              : known_recomputed[{index, part.recomputed_blocks}];
    if (entry) return *entry;
    const auto& place = places.at(at);
    const auto& own = *place.layers;
    if (part.recomputed_blocks == 0) return *(entry = &made.emplace_back(stage(place, own, part)));
    auto mixed = between(own, *own.recomputing,
                         static_cast<double>(part.recomputed_blocks) / length);
    mixed.working = own.recomputing->working;
    if (part.recomputed_blocks < length) mixed.working = std::max(mixed.working, own.working);
    return *(entry = &made.emplace_back(stage(place, mixed, part)));
  };
  std::vector<Blocks> parts;
  const bool pinned = !limits_.starts.empty(), heterogeneous = is_heterogeneous(choice);
  bool best = true;
  if (choice.pipe == 1) {
    const auto recomputed_blocks = layers.recomputing ? least_recomputed(places.at(0), best) : 0;
    parts = {all_blocks(recomputed_blocks.value_or(blocks))};
    if (!recomputed_blocks) {
      least_bytes = bytes_of(choice, stage_of(0, parts.front()), 0);
      return std::nullopt;
    }
  } else if (choice.chunks > 1) {
    parts = pinned ? pinned_parts() : deal_parts(choice, layers, places, stage_of, least_bytes);
  } else if (heterogeneous || pinned) {
    parts = cut_heterogeneous_stages(choice, places, stage_of, least_bytes, worth);
  } else {
    parts = cut_stages(choice, places.at(0), stage_of, least_bytes, best);
  }
  if (parts.empty()) return std::nullopt;
  auto result = timed(choice, layers, places, stage_of, parts, worth);
  if (pinned || sees_all_cuts(choice, result.seconds, worth)) {
    result.lower_bound = result.seconds;
  } else if (!heterogeneous) {
    settle(choice, layers, places, stage_of, parts, best, worth, result);
  }
  least_bytes = result.bytes;
  if (result.bytes > result.limit) return std::nullopt;
  return result;
}

double Model::bubble_in_rounds(const Choice& choice, const Places& places, const StageOf& stage_of,
                               const std::vector<Blocks>& parts, double transfer,
                               double longest) const {
  std::vector<PartTimes> times;
  for (size_t k = 0; k < parts.size(); ++k) {
    const auto stage = static_cast<int>(k % static_cast<size_t>(choice.pipe));
    const auto& part = stage_of(stage, parts[k]);
    times.push_back({.forward = part.forward,
                     .backward = part.backward,
                     .recomputed = parts[k].length() * places.at(stage).layers->repeated});
  }
  const bool identical = std::ranges::adjacent_find(times, std::not_equal_to<>()) == times.end();
  return identical ? 0 : rounds_.seconds(choice, times, transfer) - longest;
}

Estimate Model::timed(const Choice& choice, const Layers& layers, const Places& places,
                      const StageOf& stage_of, const std::vector<Blocks>& parts,
                      double worth) const {
  const auto microbatches = static_cast<double>(choice.microbatches);
  const bool heterogeneous = is_heterogeneous(choice);
  Estimate result;
  std::vector<StageCosts> made(static_cast<size_t>(choice.pipe));
  const auto stage_of_part = stage_of_parts(choice.schedule, static_cast<int>(choice.pipe),
                                            static_cast<int>(choice.chunks));
  for (size_t k = 0; k < parts.size(); ++k) {
    const int begin = parts[k].begin;
    for (int n = 0; n < parts[k].recomputed_blocks; ++n)
      result.recomputed_blocks.push_back(begin + n);
    made[static_cast<size_t>(stage_of_part[k])].join(stage_of(stage_of_part[k], parts[k]),
                                                     choice.chunks);
    if (k > 0) result.cuts.push_back(begin);
  }
  // The per-step epilogue: until the all-reduce over all stages, and in all.
  const double meeting = this->meeting(choice);
  double sum = 0, once = 0, norm = meeting, optimizer = 0, forward = 0, gradient = 0;
  const StageCosts* longest = &made.front();
  // Seconds from the end of a stage's last backward pass to the end of the first stage's.
  double early = 0;
  const double message = choice.submeshes.empty() ? transfer(choice, layers) : 0;
  for (size_t s = 0; s < made.size(); ++s) {
    const auto& one = made[s];
    sum += one.pass();
    forward += one.forward;
    gradient += one.gradient;
    if (one.pass() > longest->pass()) longest = &one;
    once = std::max(once, one.once - early);
    norm = std::max(norm, one.ready() - early);
    optimizer = std::max(optimizer, one.optimizer);
    early += one.backward / static_cast<double>(choice.chunks) + message;
    const double bytes = bytes_of(choice, one, static_cast<int64_t>(made.size() - 1 - s));
    const double limit = places.at(static_cast<int>(s)).limit;
    if (s > 0 && bytes / limit <= result.bytes / result.limit) continue;
    result.bytes = bytes;
    result.limit = limit;
  }
  optimizer += norm + meeting - once;
  Passes passes;
  if (heterogeneous) {
    passes = passes_of(choice, places, made, parts, stage_of_part);
    result.lower_bound = lower_bound(choice, layers).value_or(0);
  } else {
    const auto whole = this->whole(choice, layers);
    passes = whole.passes;
    result.lower_bound = lower_bound(choice, whole);
  }
  if (layers.recomputing && !heterogeneous) {
    // The blocks that a solver has chosen; the bound assumes that all may be recomputed.
    const auto recomputed_blocks = static_cast<double>(result.recomputed_blocks.size());
    passes.recomputed = recomputed_blocks * layers.repeated;
    passes.backward += recomputed_blocks *
                       (layers.recomputing->block.backward - layers.block.backward);
  }
  result.parts.tensor = longest->tensor * microbatches;
  result.parts.compute = (longest->pass() - longest->tensor - longest->exchange) * microbatches;
  const SlowestStage slowest{longest->pass(), longest - made.data()};
  result.parts.bubble = bubble_seconds(choice, passes, sum, slowest);
  if (runs_as_row(choice)) {
    const auto row = step_of_row(choice, places, made, parts);
    result.parts.bubble = row.passes - longest->pass() * microbatches;
    once = row.once;
    optimizer = row.optimizer;
  }
  result.parts.data = once + longest->exchange * microbatches;
  result.parts.optimizer = optimizer;
  result.epilogue = once + optimizer;
  if (choice.pipe > 1 && splits_backward(choice.schedule)) {
    // Rounded to a tenth of the average: searches of orders with nearly equal costs are slow.
    const double average = sum / 3;
    const auto share = [&](double seconds) {
      return std::max(0.1, std::round(10 * seconds / average) / 10);
    };
    const double message = passes.transfer * static_cast<double>(choice.pipe);
    result.costs = {share(forward), share(sum - forward - gradient), share(gradient),
                    std::round(10 * message / average) / 10};
    if (result.parts.total() < worth) {
      const double excess = orders_.excess(choice, passes, result.costs);
      if (excess > 0) result.parts.bubble = bubble_seconds(choice, passes, sum, slowest, excess);
    }
  } else if (schedule::describe(choice.schedule).in_rounds && result.parts.total() < worth) {
    const double bubble = bubble_in_rounds(choice, places, stage_of, parts, passes.transfer,
                                           microbatches * longest->pass());
    result.parts.bubble = std::max(result.parts.bubble, bubble);
  }
  result.seconds = result.parts.total();
  return result;
}

}  // namespace perigee::search
