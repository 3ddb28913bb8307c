#include "search/model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "base/error.h"
#include "solve/solve.h"

namespace perigee::search {
namespace {

using cost::CollectiveKind;

// Ranks of one group over the data axis, and the next stage's neighbour: the mesh is tensor, data,
// pipe from the inside out.
std::vector<int64_t> data_group(const Choice& choice) {
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < choice.data; ++i) ranks.push_back(i * choice.tensor);
  return ranks;
}

}  // namespace

Model::Stage Model::stage(const Choice& choice, const Layers& layers, int begin, int end,
                          bool exchange) const {
  const auto blocks = static_cast<int>(std::max<size_t>(1, folded_.blocks.size()));
  const auto parts = static_cast<double>(choice.data);
  const auto& device = costs_.cluster().device(0);
  Stage stage;
  double weights = 0, gradients = 0, states = 0, step = 0;
  const auto add = [&](const Layer& layer, double times) {
    // Gradients of later microbatches are added.
    const double accumulate =
        choice.microbatches > 1
            ? 3 * layer.gradients / (device.bandwidth * device.memory_efficiency)
            : 0;
    stage.forward += times * layer.forward;
    stage.backward += times * (layer.backward + accumulate);
    stage.tensor += times * layer.communication;
    stage.flight += times * layer.saved;
    weights += times * layer.weights;
    gradients += times * layer.gradients;
    states += times * layer.states;
    step += times * layer.step;
  };
  if (begin == 0) add(layers.first, 1);
  if (!folded_.blocks.empty()) add(layers.block, end - begin);
  if (end == blocks) add(layers.last, 1);

  if (choice.data > 1 && exchange) {
    const auto group = data_group(choice);
    const auto time = [&](CollectiveKind kind, double bytes) {
      return costs_.collective({kind, "data", group, bytes}).seconds;
    };
    const double reduce = time(
        choice.zero == 0 ? CollectiveKind::all_reduce : CollectiveKind::reduce_scatter, gradients);
    const double gather = choice.zero == 0 ? 0 : time(CollectiveKind::all_gather, weights);
    if (choice.zero <= 1) {
      // The last microbatch's backward pass hides what it can.
      stage.once = std::max(reduce - stage.backward, 0.1 * reduce) + gather;
    } else if (choice.zero == 2) {
      stage.backward = std::max(stage.backward, reduce);
      stage.once = gather;
    } else {
      stage.forward = std::max(stage.forward, gather);
      stage.backward = std::max(stage.backward, gather + reduce);
    }
  }
  stage.optimizer = choice.zero > 0 ? step / parts : step;
  stage.fixed = (choice.zero >= 3 ? weights / parts : weights) +
                (choice.zero >= 2 ? gradients / parts : gradients) +
                (choice.zero >= 1 ? states / parts : states) + layers.working +
                (choice.zero >= 3 ? 3 * layers.block.weights + layers.first.weights : 0) +
                (choice.zero == 2 ? 2 * layers.block.gradients : 0);
  return stage;
}

double Model::in_flight(const Choice& choice, int64_t successors) const {
  const auto p = static_cast<double>(choice.pipe), v = static_cast<double>(choice.chunks);
  const auto s = static_cast<double>(successors);
  const double microbatches = static_cast<double>(choice.microbatches);
  if (choice.pipe == 1) return 1;
  if (choice.schedule == "gpipe") return microbatches;
  if (v > 1) return std::min(microbatches, ((v - 1) * p + 2 * s + 1) / v);
  return std::min(microbatches, s + 1);
}

double Model::hidden(const Choice& choice, const Layers& layers) const {
  if (!choice.checkpoint || choice.pipe == 1) return 0;
  const auto again = static_cast<double>(folded_.blocks.size()) * layers.block.forward /
                     static_cast<double>(choice.every);
  const auto p = static_cast<double>(choice.pipe);
  return again * (p - 1) / p / static_cast<double>(choice.chunks);
}

double Model::transfer(const Choice& choice, const Layers& layers) const {
  if (choice.pipe == 1) return 0;
  const std::vector<int64_t> ranks{0, choice.tensor * choice.data};
  return costs_.collective({CollectiveKind::message, "pipe", ranks, layers.crossing}).seconds;
}

double Model::lower_bound(const Choice& choice, const Layers& layers) const {
  const auto blocks = static_cast<int>(std::max<size_t>(1, folded_.blocks.size()));
  auto alone = choice;
  if (choice.zero >= 2) alone.zero = 1;  // what it hides depends on the cut
  const auto all = stage(alone, layers, 0, blocks, /*exchange=*/false);
  const auto p = static_cast<double>(choice.pipe);
  const double pass = all.forward + all.backward, longest = pass / p;
  return longest * static_cast<double>(choice.microbatches) +
         std::max(0.0,
                  (pass - longest) / static_cast<double>(choice.chunks) - hidden(choice, layers)) +
         2 * (p * static_cast<double>(choice.chunks) - 1) * transfer(choice, layers);
}

std::optional<Estimate> Model::estimate(const Choice& choice, const Layers& layers,
                                        double& least_bytes) const {
  const auto blocks = static_cast<int>(std::max<size_t>(1, folded_.blocks.size()));
  const auto microbatches = static_cast<double>(choice.microbatches);
  Estimate result;
  std::vector<std::pair<int, int>> stages;  // blocks [begin, end)
  // Blocks are alike: only a stage's length counts, and whether it has the first or the last.
  std::map<std::tuple<bool, bool, int>, Stage> known;
  const auto stage_of = [&](int begin, int end) -> const Stage& {
    const auto [entry, added] = known.try_emplace({begin == 0, end == blocks, end - begin});
    if (added) entry->second = stage(choice, layers, begin, end);
    return entry->second;
  };
  if (choice.pipe == 1) {
    const auto one = stage(choice, layers, 0, blocks);
    least_bytes = one.fixed + one.flight;
    if (least_bytes > limit_) return std::nullopt;
    stages = {{0, blocks}};
  } else if (choice.chunks > 1) {
    // Parts of equal length; a stage has every pipe-th.
    const auto parts = choice.pipe * choice.chunks;
    if (blocks % parts != 0) return std::nullopt;
    const int length = static_cast<int>(blocks / parts);
    for (int64_t k = 0; k < parts; ++k) {
      stages.emplace_back(static_cast<int>(k) * length, static_cast<int>(k + 1) * length);
    }
  } else {
    solve::StagesProblem problem{.layers = blocks,
                                 .devices = choice.pipe,
                                 .microbatches = choice.microbatches,
                                 .submeshes = {{1, 1}}};
    least_bytes = std::numeric_limits<double>::infinity();
    for (int begin = 0; begin < blocks; ++begin) {
      for (int end = begin + 1; end <= blocks; ++end) {
        const auto& one = stage_of(begin, end);
        const bool all_flight = choice.schedule == "gpipe";
        const double room = limit_ - one.fixed;
        double most =
            one.flight > 0 ? std::floor(room / one.flight) : std::numeric_limits<double>::max();
        if (end - begin == (blocks + choice.pipe - 1) / choice.pipe) {
          const double k = begin == 0 ? static_cast<double>(choice.pipe) : 1;
          least_bytes = std::min(least_bytes, one.fixed + std::min(k, microbatches) * one.flight);
        }
        if (room < 0 || most < 1) continue;
        if (all_flight && most < microbatches) continue;
        solve::StageCandidate candidate{.first = begin, .last = end - 1, .submesh = 0};
        candidate.time = one.forward + one.backward;
        if (most < microbatches) candidate.max_successors = static_cast<int64_t>(most) - 1;
        problem.candidates.push_back(candidate);
      }
    }
    if (problem.candidates.empty()) return std::nullopt;
    const auto solved = solve::solve(problem);
    if (solved.verdict == solve::Verdict::infeasible) return std::nullopt;
    for (int index : solved.choice) {
      const auto& candidate = problem.candidates[index];
      stages.emplace_back(candidate.first, candidate.last + 1);
    }
  }

  std::vector<Stage> made;  // by stage of the pipeline
  made.resize(static_cast<size_t>(choice.pipe));
  for (size_t k = 0; k < stages.size(); ++k) {
    const auto& part = stage_of(stages[k].first, stages[k].second);
    auto& whole = made[k % static_cast<size_t>(choice.pipe)];
    whole.forward += part.forward;
    whole.backward += part.backward;
    whole.tensor += part.tensor;
    whole.once += part.once;
    whole.optimizer += part.optimizer;
    whole.flight += part.flight;
    // What a stage's parts work with is there once.
    whole.fixed += part.fixed - (whole.fixed > 0 ? layers.working : 0);
    if (k > 0) result.cuts.push_back(stages[k].first);
  }
  double sum = 0, longest = 0, once = 0, optimizer = 0, tensor = 0;
  for (size_t s = 0; s < made.size(); ++s) {
    const auto& one = made[s];
    const double pass = one.forward + one.backward;
    sum += pass;
    if (pass > longest) {
      longest = pass;
      tensor = one.tensor;
    }
    once = std::max(once, one.once);
    optimizer = std::max(optimizer, one.optimizer);
    const auto successors = static_cast<int64_t>(made.size() - 1 - s);
    result.bytes = std::max(result.bytes, one.fixed + in_flight(choice, successors) * one.flight);
  }
  least_bytes = result.bytes;
  if (result.bytes > limit_) return std::nullopt;
  const double chunks = static_cast<double>(choice.chunks);
  result.parts.tensor = tensor * microbatches;
  result.parts.compute = longest * microbatches - result.parts.tensor;
  result.parts.bubble =
      std::max(0.0, (sum - longest) / chunks - hidden(choice, layers)) +
      2 * (static_cast<double>(choice.pipe) * chunks - 1) * transfer(choice, layers);
  result.parts.data = once;
  result.parts.optimizer = optimizer;
  result.seconds = result.parts.total();
  result.lower_bound = lower_bound(choice, layers);
  return result;
}

}  // namespace perigee::search
