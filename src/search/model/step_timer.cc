#include "search/model/step_timer.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "schedule/description.h"
#include "schedule/schedule.h"
#include "search/model/pipeline/row_time.h"

namespace perigee::search {
namespace {

// Returns the stage of each part.
std::vector<int> stages_of_parts(const Choice& choice) {
  return stage_of_parts(choice.schedule, static_cast<int>(choice.pipe),
                        static_cast<int>(choice.chunks));
}

// Returns the costs of each stage, with all its parts.
std::vector<StageCosts> joined(PricedStages& stages, const std::vector<PartBlocks>& parts) {
  const auto stage_of_part = stages_of_parts(stages.choice());
  std::vector<StageCosts> costs(static_cast<size_t>(stages.count()));
  for (size_t k = 0; k < parts.size(); ++k) {
    const int stage = stage_of_part[k];
    costs[static_cast<size_t>(stage)].join(stages.costs(stage, parts[k]), stages.choice().chunks);
  }
  return costs;
}

// Sets the bytes and the limit of the stage with the largest share of its limit.
void set_memory(const PricedStages& stages, const std::vector<StageCosts>& costs,
                Estimate& result) {
  for (int stage = 0; stage < stages.count(); ++stage) {
    const double bytes = stages.bytes_of(stage, costs[static_cast<size_t>(stage)]);
    const double limit = stages.place(stage).limit;
    if (stage > 0 && bytes / limit <= result.bytes / result.limit) continue;
    result.bytes = bytes;
    result.limit = limit;
  }
}

}  // namespace

StepTimer::StageSums StepTimer::sums_of(const std::vector<StageCosts>& costs) {
  StageSums sums;
  const StageCosts* slowest = &costs.front();
  for (const auto& one : costs) {
    sums.pass += one.pass();
    sums.forward += one.forward;
    sums.weight_gradients += one.weight_gradients;
    if (one.pass() > slowest->pass()) slowest = &one;
  }
  sums.slowest = {slowest->pass(), slowest - costs.data()};
  return sums;
}

StepTimer::Epilogue StepTimer::epilogue_of(const PricedStages& stages,
                                           const std::vector<StageCosts>& costs) const {
  const auto& choice = stages.choice();
  const double all_reduce = transfers_.scalar_all_reduce(choice);
  const double message = choice.submeshes.empty() ? transfers_.mean_message(choice, stages.layers())
                                                  : 0;
  double exchange = 0, norm = all_reduce, optimizer = 0;
  // Seconds from the end of a stage's last backward pass to the end of the first stage's.
  double early = 0;
  for (const auto& one : costs) {
    exchange = std::max(exchange, one.gradient_exchange - early);
    norm = std::max(norm, one.until_global_norm() - early);
    optimizer = std::max(optimizer, one.optimizer);
    early += one.backward / static_cast<double>(choice.chunks) + message;
  }
  optimizer += norm + all_reduce - exchange;
  return {.gradient_exchange = exchange, .optimizer = optimizer};
}

Passes StepTimer::heterogeneous_passes(const PricedStages& stages,
                                       const std::vector<StageCosts>& costs,
                                       const std::vector<PartBlocks>& parts) const {
  const auto& choice = stages.choice();
  const auto stage_of_part = stages_of_parts(choice);
  Passes passes;
  for (const auto& stage : costs) {
    passes.forward += stage.forward;
    passes.weights += stage.weight_gradients;
    passes.backward += stage.backward - stage.weight_gradients;
  }
  for (size_t k = 0; k < parts.size(); ++k) {
    const auto& layers = *stages.place(stage_of_part[k]).layers;
    passes.recomputed += (layers.recomputing ? parts[k].recomputed_blocks : parts[k].length()) *
                         layers.repeated;
  }
  passes.transfer = transfers_.round_trip(choice, stages.places()) /
                    (2 * std::max(1.0, static_cast<double>(choice.pipe - 1)));
  return passes;
}

Passes StepTimer::homogeneous_passes(const PricedStages& stages, const Estimate& estimate) const {
  const auto& layers = stages.layers();
  auto passes = bounds_.whole(stages.choice(), layers).passes;
  if (layers.recomputing) {
    // The blocks that a solver has chosen; the bound assumes that all may be recomputed.
    const auto recomputed_blocks = static_cast<double>(estimate.recomputed_blocks.size());
    passes.recomputed = recomputed_blocks * layers.repeated;
    passes.backward += recomputed_blocks *
                       (layers.recomputing->block.backward - layers.block.backward);
  }
  return passes;
}

double StepTimer::search_orders(const Choice& choice, const Passes& passes, const StageSums& sums,
                                double exact_below, Estimate& result) const {
  // Rounded to a tenth of the average: searches of orders with nearly equal costs are slow.
  const double average = sums.pass / 3;
  const auto share = [&](double seconds) {
    return std::max(0.1, std::round(10 * seconds / average) / 10);
  };
  const double message = passes.transfer * static_cast<double>(choice.pipe);
  result.costs = {share(sums.forward), share(sums.pass - sums.forward - sums.weight_gradients),
                  share(sums.weight_gradients), std::round(10 * message / average) / 10};
  return result.parts.total() < exact_below ? orders_.excess(choice, passes, result.costs) : 0;
}

double StepTimer::bubble_in_rounds(PricedStages& stages, const std::vector<PartBlocks>& parts,
                                   const Passes& passes, double slowest) const {
  std::vector<PartTimes> times;
  for (size_t k = 0; k < parts.size(); ++k) {
    const auto stage = static_cast<int>(k % static_cast<size_t>(stages.count()));
    const auto& part = stages.costs(stage, parts[k]);
    times.push_back({.forward = part.forward,
                     .backward = part.backward,
                     .recomputed = parts[k].length() * stages.place(stage).layers->repeated});
  }
  // The closed form is exact for identical parts with messages that their passes hide.
  const bool identical = std::ranges::adjacent_find(times, std::not_equal_to<>()) == times.end();
  const bool hidden = 2 * passes.transfer <= times.front().forward + times.front().backward;
  return identical && hidden ? 0
                             : rounds_.seconds(stages.choice(), times, passes.transfer) - slowest;
}

Estimate StepTimer::time(PricedStages& stages, const std::vector<PartBlocks>& parts,
                         double exact_below) const {
  const auto& choice = stages.choice();
  const auto microbatches = static_cast<double>(choice.microbatches);
  Estimate result;
  for (size_t k = 0; k < parts.size(); ++k) {
    const int begin = parts[k].begin;
    for (int n = 0; n < parts[k].recomputed_blocks; ++n) {
      result.recomputed_blocks.push_back(begin + n);
    }
    if (k > 0) result.cuts.push_back(begin);
  }
  const auto costs = joined(stages, parts);
  set_memory(stages, costs, result);
  const auto sums = sums_of(costs);
  const auto& slowest = costs[static_cast<size_t>(*sums.slowest.stage)];
  const auto passes = is_heterogeneous(choice, cluster_)
                          ? heterogeneous_passes(stages, costs, parts)
                          : homogeneous_passes(stages, result);
  auto& seconds = result.parts;
  seconds.tensor = slowest.communication * microbatches;
  seconds.compute = (slowest.pass() - slowest.communication - slowest.exchange) * microbatches;
  seconds.bubble = bubble_seconds(choice, passes, sums.pass, sums.slowest);
  auto epilogue = epilogue_of(stages, costs);
  if (times_sections(choice)) {
    const auto row = time_row_step(stages, costs, parts);
    seconds.bubble = row.passes - slowest.pass() * microbatches;
    epilogue = {.gradient_exchange = row.gradient_exchange, .optimizer = row.optimizer};
  }
  seconds.data = epilogue.gradient_exchange + slowest.exchange * microbatches;
  seconds.optimizer = epilogue.optimizer;
  result.epilogue_seconds = epilogue.gradient_exchange + epilogue.optimizer;
  double excess = 0;
  if (choice.pipe > 1 && splits_backward(choice.schedule)) {
    excess = search_orders(choice, passes, sums, exact_below, result);
    if (excess > 0) {
      seconds.bubble = bubble_seconds(choice, passes, sums.pass, sums.slowest, excess);
    }
  } else if (schedule::describe(choice.schedule).in_rounds && seconds.total() < exact_below) {
    const double bubble = bubble_in_rounds(stages, parts, passes, microbatches * slowest.pass());
    seconds.bubble = std::max(seconds.bubble, bubble);
  }
  result.seconds = seconds.total();
  result.passes_bound = slowest.pass() * microbatches +
                        bubble_seconds(choice, passes, sums.pass, {slowest.pass()}, excess);
  return result;
}

bool StepTimer::times_sections(const Choice& choice) const {
  return choice.pipe > 1 && choice.chunks == 1 && !splits_backward(choice.schedule) &&
         is_heterogeneous(choice, cluster_);
}

RowStep StepTimer::time_row_step(const PricedStages& stages, const std::vector<StageCosts>& costs,
                                 const std::vector<PartBlocks>& parts) const {
  const auto& choice = stages.choice();
  std::vector<RowStage> row;
  int64_t first = 0;
  for (int stage = 0; stage < stages.count(); ++stage) {
    const auto& one = costs[static_cast<size_t>(stage)];
    const auto& part = parts[static_cast<size_t>(stage)];
    const auto& place = stages.place(stage);
    const double blocks = place.layers->recomputing ? part.recomputed_blocks : part.length();
    auto& timed = row.emplace_back(RowStage{.forward = one.forward,
                                            .backward = one.backward,
                                            .recomputed = blocks * place.layers->repeated,
                                            .tail = one.tail});
    const auto ranks = place.choice.tensor * place.choice.expert * place.choice.parts();
    const bool has_next = stage + 1 < stages.count();
    if (has_next) {
      const auto message = transfers_.to_next(choice, stages.places(), stage);
      timed.send_seconds = message.forward;
      timed.return_seconds = message.backward;
    }
    const auto tensor = place.choice.tensor;
    const auto neighbour = has_next ? first + ranks : first - 1;
    if (tensor > 1 && cost::level_of(cluster_, {first, first + tensor - 1}) ==
                          cost::level_of(cluster_, {first, neighbour})) {
      timed.forward_links = one.forward_communication;
      timed.backward_links = one.communication - one.forward_communication;
    }
    first += ranks;
  }
  const auto timed = time_row(choice.schedule, row, choice.microbatches);
  const double all_reduce = transfers_.scalar_all_reduce(choice);
  double exchanged = timed.seconds, norm = timed.seconds + all_reduce, optimizer = 0;
  for (size_t s = 0; s < costs.size(); ++s) {
    exchanged = std::max(exchanged, timed.ends[s] + costs[s].gradient_exchange);
    norm = std::max(norm, timed.ends[s] + costs[s].until_global_norm());
    optimizer = std::max(optimizer, costs[s].optimizer);
  }
  return {.passes = timed.seconds,
          .gradient_exchange = exchanged - timed.seconds,
          .optimizer = norm + all_reduce - exchanged + optimizer};
}

}  // namespace perigee::search
