#include "search/model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "base/error.h"
#include "cost/schedule.h"
#include "search/cut.h"
#include "solve/solve.h"

namespace perigee::search {
namespace {

using cost::CollectiveKind;

// The least bytes that accumulating a gradient moves: read two, write one.
constexpr double kAccumulated = 3;

// The share of the blocks that run again; of what a solver has not chosen yet, all.
double share_again(const Choice& choice) {
  if (!choice.checkpoint) return 0;
  return choice.every == 0 ? 1 : 1 / static_cast<double>(choice.every);
}

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

const Exchanges& Model::exchanges(const Choice& choice, const Layers& layers) const {
  const std::tuple key{choice.tensor,   choice.expert,   choice.context, choice.data,
                       choice.sequence, choice.pipe > 1, choice.zero};
  const auto known = known_.find(key);
  if (known != known_.end()) return known->second;
  auto made = exchanges_of(choice, layers, costs_);
  return known_.emplace(key, std::move(made)).first->second;
}

std::pair<double, double> Model::passes(const Choice& choice, const Layer& layer,
                                        bool masters) const {
  const auto& device = costs_.cluster().device(0);
  const auto parts = static_cast<double>(choice.parts());
  // Gradients of later microbatches are added, to the rank's part of them or to all.
  const double added = choice.zero >= 2 ? layer.gradients / parts : layer.gradients;
  const double later = 1 - 1 / static_cast<double>(choice.microbatches);
  const double accumulate =
      later * kAccumulated * added / (device.bandwidth * device.memory_efficiency);
  // What is gathered was cast before, each rank its part; masters in parts once a step.
  const double cast = choice.zero == 3 ? 1 - 1 / parts : choice.zero > 0 && masters ? 1 : 0;
  return {layer.forward - cast * layer.forward_cast,
          layer.backward - cast * layer.backward_cast + accumulate};
}

Model::Stage Model::stage(const Choice& choice, const Layers& layers, int begin, int end) const {
  const auto parts = static_cast<double>(choice.parts());
  const auto& exchanged = exchanges(choice, layers);
  Stage stage;
  double buckets = 0, weights = 0, read = 0, gradients = 0, states = 0, transient = 0, step = 0,
         gather = 0;
  std::vector<Passing> forward, backward;
  const auto add = [&](const Layer& layer, const LayerExchange& exchange, int times) {
    const auto [there, back] = passes(choice, layer, layers.masters);
    forward.push_back({.compute = there,
                       .communication = layer.forward_communication,
                       .gather = exchange.gather_forward,
                       .times = times});
    backward.push_back({.compute = back + exchange.early,
                        .communication = layer.communication - layer.forward_communication,
                        .gather = exchange.gather_backward,
                        .reduce = exchange.reduce,
                        .last = exchange.last,
                        .behind = layer.behind,
                        .times = times});
    stage.forward += times * there;
    stage.backward += times * back;
    stage.gradient += times * layer.gradient;
    stage.tensor += times * layer.communication;
    stage.flight += times * layer.saved;
    weights += times * layer.weights;
    gradients += times * layer.gradients;
    states += times * layer.states;
    transient += times * layer.transient;
    for (const auto& flat : layer.flats) read += times * flat.gathered;
    step += times * layer.step;
    gather += times * exchange.gather;
    buckets += times * exchange.buckets;
  };
  const bool first = begin == 0, last = end == blocks();
  if (first) add(layers.first, exchanged.first, 1);
  if (!folded_.blocks.empty() && end > begin) add(layers.block, exchanged.block, end - begin);
  if (last) add(layers.last, exchanged.last, 1);
  stage.optimizer = choice.zero > 0 ? step / parts : step;

  if (exchanged.least > 0) {
    if (choice.zero < 3) end_with_bucket(backward, buckets);
    std::reverse(backward.begin(), backward.end());
    if (layers.tied && first && last && choice.zero == 3) {
      // The last product reads the first layer's unit, which is there from then on; the last unit,
      // of what little it has of its own, comes behind it.
      const auto& product = layers.last;
      backward.front().compute = 0;
      backward.front().communication = 0;
      backward.back().gather = 0;
      backward.insert(backward.begin(),
                      {.compute = passes(choice, product, layers.masters).second,
                       .communication = product.communication - product.forward_communication,
                       .gather = exchanged.first.gather_backward});
    }
    const double back =
        seconds_of_pass(backward, exchanged.contends) + (choice.zero < 3 ? exchanged.least : 0);
    if (choice.zero >= 2) {
      const double there = seconds_of_pass(forward, exchanged.contends);
      stage.exchange = there + back - stage.forward - stage.backward;
      stage.forward = there;
      stage.backward = back;
    } else {
      // The last microbatch's backward pass hides what it can.
      stage.once = back - stage.backward;
    }
    // New weights are gathered while the next bucket is stepped.
    stage.once += std::max(gather - stage.optimizer, gather / std::max(1.0, buckets));
    if (first || last) stage.once += exchanged.tied;
  }
  const auto& device = costs_.cluster().device(0);
  const double held = choice.zero >= 1 ? states / parts : states;
  // Copies to the host and from it run beside each other, and beside the optimizer.
  if (choice.offload) stage.once += std::max(0.0, held / device.host - stage.optimizer);
  const auto gathered = [](const Layer& layer) {
    double bytes = 0;
    for (const auto& flat : layer.flats) bytes += flat.gathered;
    return bytes;
  };
  // Masters lie in parts beside whole low weights.
  const double kept = choice.zero >= 3                    ? weights / parts
                      : choice.zero > 0 && layers.masters ? read + weights / parts
                                                          : weights;
  const double resident =
      kept + (choice.zero >= 2 ? gradients / parts : gradients) + (choice.offload ? 0 : held);
  stage.step = resident + (choice.zero >= 1 ? transient / parts : transient);
  stage.fixed = resident + layers.working +
                (choice.zero >= 3
                     ? 2 * gathered(layers.block) + layers.block.gradients + gathered(layers.first)
                     : 0) +
                (choice.zero == 2 ? 2 * layers.block.gradients : 0);
  return stage;
}

double Model::in_flight(const Choice& choice, int64_t successors) const {
  const auto p = static_cast<double>(choice.pipe), v = static_cast<double>(choice.chunks);
  const auto s = static_cast<double>(successors);
  const double microbatches = static_cast<double>(choice.microbatches);
  if (choice.pipe == 1) return 1;
  if (choice.schedule == "gpipe") return microbatches;
  if (splits_backward(choice.schedule)) {
    const double most = choice.schedule == "zb2p"     ? 2 * p
                        : choice.schedule == "v_half" ? p / 2 + 1
                        : choice.schedule == "v_min"  ? p / 2
                                                      : p;
    return std::min(microbatches, most);
  }
  // Parts share room for one more than are in flight (compile/frame_pools.h).
  if (v > 1) return std::min(microbatches, ((v - 1) * p + 2 * s + 2) / v);
  return std::min(microbatches, s + 1);
}

double Model::hidden(const Choice& choice, const Layers& layers, double again) const {
  if (choice.pipe == 1) return 0;
  const auto p = static_cast<double>(choice.pipe), v = static_cast<double>(choice.chunks);
  const auto count = static_cast<double>(folded_.blocks.size());
  const auto all = [&](double Layer::*field) {
    return layers.first.*field + count * layers.block.*field + layers.last.*field;
  };
  double hides = 0;
  hides += count * layers.block.forward * again * (p - 1) / p;
  if (splits_backward(choice.schedule)) {
    // Qi et al. 2023: with the memory of 1f1b the bubble of a stage is F + B - W for each other
    // one, and F + B - 2 W with more. The first stage waits for its first gradient while it has run
    // all microbatches' forward passes, where they are fewer than stages.
    const double weights = all(&Layer::gradient), forward = all(&Layer::forward);
    const double fewer = std::max(0.0, p - static_cast<double>(choice.microbatches));
    const double most = (forward + weights) * (p - 1) / p - forward * fewer / p;
    hides += std::clamp((choice.schedule == "zb1p" ? 2 : 3) * weights * (p - 1) / p, 0.0,
                        std::max(0.0, most));
  }
  return hides / v;
}

double Model::transfer(const Choice& choice, const Layers& layers) const {
  if (choice.pipe == 1) return 0;
  const std::vector<int64_t> ranks{0, choice.tensor * choice.expert * choice.parts()};
  return costs_.collective({CollectiveKind::message, "pipe", ranks, layers.crossing}).seconds;
}

double Model::lower_bound(const Choice& choice, const Layers& layers) const {
  const auto count = static_cast<double>(folded_.blocks.size());
  const auto p = static_cast<double>(choice.pipe), v = static_cast<double>(choice.chunks);
  double forward = 0, backward = 0;
  const auto add = [&](const Layer& layer, double times) {
    const auto [there, back] = passes(choice, layer, layers.masters);
    forward += times * there;
    backward += times * back;
  };
  add(layers.first, 1);
  add(layers.block, count);
  add(layers.last, 1);
  if (choice.zero >= 2 && choice.parts() > 1) {
    // What goes through the stream of units in a pass; a part's last reduction may be hidden.
    const auto& [first, block, last, least, contends, tied] = exchanges(choice, layers);
    const double parts = p * v;
    const double gathers =
        first.gather_forward + count * block.gather_forward + last.gather_forward;
    const double back = count * block.gather_backward + last.gather_backward +
                        std::max(0.0, count - parts) * block.reduce;
    forward = std::max(forward, gathers);
    backward = std::max(backward, back);
  }
  const double pass = forward + backward, longest = pass / p;
  return longest * static_cast<double>(choice.microbatches) +
         std::max(0.0, (pass - longest) / v - hidden(choice, layers, share_again(choice))) +
         2 * (p * v - 1) * transfer(choice, layers);
}

std::optional<int> Model::least_again(const Choice& choice, const Layers& layers) const {
  const auto whole = stage(choice, layers, 0, blocks());
  const auto option = [](const Layers& of, const Layer& layer) {
    return solve::AssignOption{
        .time = layer.forward + layer.backward, .saved = layer.saved, .transient = of.working};
  };
  solve::AssignProblem problem{.memory_limit = limit_, .transient_count = 1};
  solve::AssignOption rest{.resident = whole.fixed - layers.working,
                           .saved = layers.first.saved + layers.last.saved};
  rest.optimizer = std::max(0.0, whole.step - rest.resident);
  problem.ops.push_back({.name = "rest", .options = {rest}});
  for (const auto& block : folded_.blocks) {
    problem.ops.push_back(
        {.name = block,
         .options = {option(layers, layers.block), option(*layers.again, layers.again->block)}});
  }
  const auto solved = solve::solve(problem, {.solver = solver_});
  if (solved.verdict == solve::Verdict::infeasible) return std::nullopt;
  return static_cast<int>(std::count(solved.choice.begin() + 1, solved.choice.end(), 1));
}

std::optional<Estimate> Model::estimate(const Choice& choice, const Layers& layers,
                                        double& least_bytes) const {
  const auto blocks = this->blocks();
  const auto microbatches = static_cast<double>(choice.microbatches);
  Estimate result;
  struct Blocks {
    int begin, end;  // [begin, end)
    int again = 0;   // the first of them run again
  };
  std::vector<Blocks> stages;
  // Blocks are alike: only a stage's length counts, how many of them run again, and whether it has
  // the first or the last.
  std::map<std::tuple<bool, bool, int, int>, Stage> known;
  const auto stage_of = [&](int begin, int end, int again = 0) -> const Stage& {
    const auto [entry, added] = known.try_emplace({begin == 0, end == blocks, end - begin, again});
    if (!added) return entry->second;
    if (again == 0) return entry->second = stage(choice, layers, begin, end);
    auto mixed = between(layers, *layers.again, static_cast<double>(again) / (end - begin));
    mixed.working = layers.again->working;
    if (again < end - begin) mixed.working = std::max(mixed.working, layers.working);
    return entry->second = stage(choice, mixed, begin, end);
  };
  if (choice.pipe == 1) {
    const auto again = layers.again ? least_again(choice, layers) : 0;
    const auto& one = stage_of(0, blocks, again.value_or(blocks));
    least_bytes = std::max(one.fixed + one.flight, one.step);
    if (!again || least_bytes > limit_) return std::nullopt;
    stages = {{0, blocks, *again}};
  } else if (choice.chunks > 1) {
    // Parts of equal length; a stage has every pipe-th.
    const auto parts = choice.pipe * choice.chunks;
    if (blocks % parts != 0) return std::nullopt;
    const int length = static_cast<int>(blocks / parts);
    for (int64_t k = 0; k < parts; ++k) {
      stages.push_back({static_cast<int>(k) * length, static_cast<int>(k + 1) * length});
    }
  } else {
    // Stages of 1f1b have as many microbatches in flight as successors, and one.
    const bool falls = choice.schedule == "1f1b" || choice.schedule == "eager_1f1b";
    const auto all = static_cast<int64_t>(in_flight(choice, 0));
    const auto enough = static_cast<int64_t>(in_flight(choice, choice.pipe - 1));
    const Row row{.blocks = blocks,
                  .stages = choice.pipe,
                  .microbatches = choice.microbatches,
                  .parts =
                      [&](StageKind kind, int length) {
                        const int begin = kind == StageKind::first  ? 0
                                          : kind == StageKind::last ? blocks - length
                                                                    : 1;
                        std::vector<StagePart> ways;
                        for (int again = 0; again <= (layers.again ? length : 0); ++again) {
                          const auto& one = stage_of(begin, begin + length, again);
                          const double room = limit_ - one.fixed;
                          StagePart part{.seconds = one.forward + one.backward, .again = again};
                          if (room < 0 || one.step > limit_) part.most = 0;
                          if (room >= 0 && one.flight > 0) {
                            part.most = static_cast<int64_t>(std::min(1e9, room / one.flight));
                          }
                          if (!falls && part.most < all) part.most = 0;
                          if (ways.empty() || part.most > ways.back().most) ways.push_back(part);
                          if (part.most >= enough) break;
                        }
                        return ways;
                      },
                  .solver = solver_};
    const auto cut = search::cut(row);
    if (!cut) {
      const int even = static_cast<int>((blocks + choice.pipe - 1) / choice.pipe);
      const int again = layers.again ? even : 0;
      const auto& one = stage_of(blocks - even, blocks, again);
      const auto& middle =
          stage_of(even < blocks - 1 ? 1 : 0, even < blocks - 1 ? even + 1 : even, again);
      least_bytes = std::min(one.fixed + one.flight, middle.fixed + middle.flight);
      return std::nullopt;
    }
    const auto& begins = cut->begins;
    for (size_t k = 0; k <= begins.size(); ++k) {
      stages.push_back(
          {k == 0 ? 0 : begins[k - 1], k == begins.size() ? blocks : begins[k], cut->again[k]});
    }
  }

  std::vector<Stage> made;  // by stage of the pipeline
  made.resize(static_cast<size_t>(choice.pipe));
  const auto stage_of_part = stage_of_parts(choice.schedule, static_cast<int>(choice.pipe),
                                            static_cast<int>(choice.chunks));
  for (size_t k = 0; k < stages.size(); ++k) {
    const auto& [begin, end, again] = stages[k];
    const auto& part = stage_of(begin, end, again);
    for (int block = begin; block < begin + again; ++block) result.again.push_back(block);
    auto& whole = made[static_cast<size_t>(stage_of_part[k])];
    whole.forward += part.forward;
    whole.backward += part.backward;
    whole.gradient += part.gradient;
    whole.exchange += part.exchange;
    whole.tensor += part.tensor;
    whole.once += part.once;
    whole.optimizer += part.optimizer;
    whole.flight += part.flight;
    whole.step += part.step;
    // What a stage's parts work with is there once.
    whole.fixed += part.fixed - (whole.fixed > 0 ? layers.working : 0);
    if (k > 0) result.cuts.push_back(begin);
  }
  double sum = 0, longest = 0, once = 0, tensor = 0, exchange = 0, optimizer = 0;
  double forward = 0, gradient = 0;
  // A stage ends its last backward pass so long before the first one does.
  double early = 0;
  for (size_t s = 0; s < made.size(); ++s) {
    const auto& one = made[s];
    const double pass = one.forward + one.backward;
    sum += pass;
    forward += one.forward;
    gradient += one.gradient;
    if (pass > longest) {
      longest = pass;
      tensor = one.tensor;
      exchange = one.exchange;
    }
    once = std::max(once, one.once - early);
    optimizer = std::max(optimizer, one.optimizer);
    early += one.backward / static_cast<double>(choice.chunks);
    const auto successors = static_cast<int64_t>(made.size() - 1 - s);
    result.bytes =
        std::max({result.bytes, one.fixed + in_flight(choice, successors) * one.flight, one.step});
  }
  least_bytes = result.bytes;
  if (result.bytes > limit_) return std::nullopt;
  const double chunks = static_cast<double>(choice.chunks);
  const double again_of_all =
      layers.again ? static_cast<double>(result.again.size()) / blocks : share_again(choice);
  result.parts.tensor = tensor * microbatches;
  result.parts.compute = (longest - tensor - exchange) * microbatches;
  result.parts.bubble =
      std::max(0.0, (sum - longest) / chunks - hidden(choice, layers, again_of_all)) +
      2 * (static_cast<double>(choice.pipe) * chunks - 1) * transfer(choice, layers);
  result.parts.data = once + exchange * microbatches;
  result.parts.optimizer = optimizer;
  result.seconds = result.parts.total();
  result.lower_bound = lower_bound(choice, layers);
  if (choice.pipe > 1 && splits_backward(choice.schedule)) {
    // Tens of the average: a search by them takes long where they are all but equal.
    const double average = sum / 3;
    const auto share = [&](double seconds) {
      return std::max(0.1, std::round(10 * seconds / average) / 10);
    };
    result.costs = {share(forward), share(sum - forward - gradient), share(gradient)};
  }
  return result;
}

}  // namespace perigee::search
