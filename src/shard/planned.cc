#include "shard/planned.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "shard/pins.h"
#include "solve/solve.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using graph::Input;

// Far more than a model takes whose blocks repeat; then the best found, with its bound.
constexpr double kMostSeconds = 60;

bool is_weight(const Graph& graph, const Input& input) {
  return input.kind == Input::Kind::parameter && graph.type(input.value).shape.size() > 1;
}

// Why a weight stays whole.
std::string reason(const Graph& graph, const Input& input, const Planned& planned, int64_t ranks) {
  const auto& type = graph.type(input.value);
  if (type.bytes() < planned.options.smallest) {
    return fmt::format("{} bytes, fewer than smallest", type.bytes());
  }
  if (std::all_of(type.shape.begin(), type.shape.end(), [&](auto size) { return size < ranks; })) {
    return "no dim has as many elements as there are ranks";
  }
  return "splitting it costs more than it saves, or is forbidden";
}

[[noreturn]] void fail_whole(const Graph& graph, const Planned& planned, int64_t ranks) {
  std::vector<const Input*> weights;
  for (const auto& input : graph.inputs) {
    if (is_weight(graph, input)) weights.push_back(&input);
  }
  if (weights.empty()) {
    fail("tensor_parallel",
         "weights of two dims or more are split over the {} ranks of axis {}, but the model has "
         "none",
         ranks, planned.axis);
  }
  std::stable_sort(weights.begin(), weights.end(), [&](const Input* a, const Input* b) {
    return graph.type(a->value).bytes() > graph.type(b->value).bytes();
  });
  weights.resize(std::min<size_t>(weights.size(), 3));
  std::vector<std::string> texts;
  for (const auto* input : weights) {
    texts.push_back(fmt::format("{} [{}] ({})", input->name,
                                fmt::join(graph.type(input->value).shape, ", "),
                                reason(graph, *input, planned, ranks)));
  }
  fail("tensor_parallel",
       "no weight can be split over the {} ranks of axis {}; the largest: {}: give the axis fewer "
       "ranks, or leave tensor_parallel out",
       ranks, planned.axis, fmt::join(texts, ", "));
}

}  // namespace

PlannedShardings place_planned(plan::Plan& plan, const Graph& graph, const Planned& planned) {
  const int axis = plan.mesh.find(planned.axis);
  if (axis < 0) {
    std::vector<std::string> axes;
    for (const auto& known : plan.mesh.axes) axes.push_back(known.name);
    fail("tensor_parallel", "layers are split over an axis of the mesh ({}), but got \"{}\"{}",
         fmt::join(axes, ", "), planned.axis, did_you_mean(planned.axis, axes));
  }
  const Assignment assignment(graph, plan, axis, planned.options);
  const auto result = solve::solve(assignment.problem(), {.time_limit = kMostSeconds});
  PlannedShardings found{.cost = result.time, .bound = result.lower_bound};
  if (result.verdict == solve::Verdict::infeasible) {
    fail("tensor_parallel",
         "the solver found no way to run the model over axis {}{}: name what is split as column, "
         "row and vocab",
         planned.axis,
         plan.forbidden.empty()
             ? std::string()
             : fmt::format(" where {} is forbidden", fmt::join(plan.forbidden, ", ")));
  }
  const auto lying = assignment.placements(result.choice);
  for (const auto& input : graph.inputs) {
    if (input.kind != Input::Kind::parameter) continue;
    const auto& p = lying[input.value.index];
    if (p.is_shard()) {
      auto& placements = plan.placements[input.name];
      placements.resize(plan.mesh.axes.size());
      placements[axis] = p;
    }
    if (!is_weight(graph, input)) continue;
    if (p.is_shard()) {
      found.split.emplace(input.name, p.dim);
    } else {
      found.whole.push_back(input.name);
    }
  }
  if (found.split.empty()) fail_whole(graph, planned, plan.mesh.axes[axis].size);
  const auto pins = find_pins(graph, plan, axis, lying);
  for (const auto& [name, placements] : pins) plan.placements[name] = placements;
  found.pins = pins.size();
  return found;
}

}  // namespace perigee::shard
