#include "shard/solver/planned_shardings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/fail.h"
#include "plan/pipeline.h"
#include "shard/propagate/pins.h"
#include "solve/problem.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using graph::Input;

bool is_weight(const Graph& graph, const Input& input) {
  return input.kind == Input::Kind::parameter && graph.type(input.value).shape.size() > 1;
}

// Why a weight cannot be split; "" if it can be.
std::string reason(const Graph& graph, const Input& input, const PlannedAxes& planned,
                   int64_t ranks) {
  const auto& type = graph.type(input.value);
  if (type.bytes() < planned.options.smallest) {
    return fmt::format("{} bytes, fewer than smallest", type.bytes());
  }
  if (std::all_of(type.shape.begin(), type.shape.end(), [&](auto size) { return size < ranks; })) {
    return "no dim has as many elements as there are ranks";
  }
  return "";
}

// "axis tensor", "axes data and tensor"
std::string named(const PlannedAxes& planned) {
  return fmt::format("{} {}", planned.axes.size() == 1 ? "axis" : "axes",
                     fmt::join(planned.axes, " and "));
}

[[noreturn]] void fail_whole(const Graph& graph, const PlannedAxes& planned, int64_t ranks) {
  std::vector<const Input*> weights;
  for (const auto& input : graph.inputs) {
    if (is_weight(graph, input)) weights.push_back(&input);
  }
  if (weights.empty()) {
    fail("tensor_parallel",
         "weights of two dims or more are split over the {} ranks of {}, but the model has none",
         ranks, named(planned));
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
       "no weight can be split over the {} ranks of {}; the largest: {}: give {} fewer ranks, or "
       "leave tensor_parallel out",
       ranks, named(planned), fmt::join(texts, ", "),
       planned.axes.size() == 1 ? "the axis" : "the axes");
}

// Returns whether a plan without split weights is an answer: a weight could be split, or there are as
// many samples as ranks. That all weights are below `smallest` is a mistake.
bool may_stay_whole(const Graph& graph, const PlannedAxes& planned, int64_t ranks) {
  bool all_small = true, samples = false;
  for (const auto& input : graph.inputs) {
    const auto& type = graph.type(input.value);
    if (input.kind == Input::Kind::data && input.batched && !type.shape.empty()) {
      samples = samples || type.shape[0] >= ranks;
    }
    if (!is_weight(graph, input)) continue;
    if (reason(graph, input, planned, ranks).empty()) return true;
    all_small = all_small && type.bytes() < planned.options.smallest;
  }
  return samples && !all_small;
}

}  // namespace

std::vector<int> find_axes(const mesh::Mesh& mesh, const std::vector<std::string>& names,
                           std::string_view method) {
  std::vector<int> axes;
  for (const auto& name : names) {
    const int axis = mesh.find(name);
    if (axis < 0) {
      std::vector<std::string> known;
      for (const auto& each : mesh.axes) known.push_back(each.name);
      fail(method, "ops are split over an axis of the mesh ({}), but got \"{}\"{}",
           fmt::join(known, ", "), name, did_you_mean(name, known));
    }
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) {
      fail(method, "axes are planned once each, but {} is named twice", name);
    }
    axes.push_back(axis);
  }
  if (axes.empty()) fail(method, "ops are split over an axis, but got none");
  std::sort(axes.begin(), axes.end());
  return axes;
}

PlannedShardings place_values(plan::Plan& plan, const Graph& graph, const std::vector<int>& axes,
                              const std::vector<mesh::Placements>& values,
                              const std::vector<int>& stages) {
  PlannedShardings found;
  for (const auto& input : graph.inputs) {
    if (input.kind != Input::Kind::parameter) continue;
    const auto& own = values[input.value.index];
    const bool cut = std::ranges::any_of(own, [](const auto& p) { return p.is_shard(); });
    if (cut) {
      auto& placements = plan.placements[input.name];
      placements.resize(plan.mesh.axes.size());
      for (size_t k = 0; k < axes.size(); ++k) placements[axes[k]] = own[k];
    }
    if (!is_weight(graph, input)) continue;
    if (cut) {
      found.split.emplace(input.name, own);
    } else {
      found.whole.push_back(input.name);
    }
  }
  const auto pin = [&](const plan::Plan& seen, const std::vector<mesh::Placements>& wanted) {
    const auto pins = find_pins(graph, seen, axes, wanted);
    for (const auto& [name, placements] : pins) plan.placements[name] = placements;
    found.pins += pins.size();
  };
  if (!plan.mesh.is_ragged()) {
    pin(plan, values);
    return found;
  }
  // Each submesh sees its own stages' values; propagation places the others.
  std::vector<mesh::Mesh> seen;
  for (int64_t stage = 0; stage < std::ssize(plan.mesh.stages); ++stage) {
    auto own = plan::of_stage(plan, stage);
    own.mesh.order.clear();
    if (std::ranges::any_of(seen, [&](const auto& m) { return m.axes == own.mesh.axes; })) continue;
    seen.push_back(own.mesh);
    auto wanted = values;
    for (size_t v = 0; v < wanted.size(); ++v) {
      if (plan.mesh.stages[stages[v]] == plan.mesh.stages[stage]) continue;
      wanted[v].assign(axes.size(), mesh::Placement::open());
    }
    pin(own, wanted);
  }
  return found;
}

PlannedShardings place_planned(plan::Plan& plan, const Graph& graph, const PlannedAxes& planned) {
  const auto axes = find_axes(plan.mesh, planned.axes, "tensor_parallel");
  int64_t ranks = 1;
  for (int a : axes) ranks *= plan.mesh.axes[a].size;
  const Assignment assignment(graph, plan, axes, planned.options);
  const auto result = solve_assignment(assignment);
  if (result.verdict == solve::Verdict::infeasible) {
    fail("tensor_parallel",
         "the solver found no sharding of the model over {}{}: name what is split as column, row "
         "and vocab",
         named(planned),
         plan.forbidden.empty()
             ? std::string()
             : fmt::format(" where {} is forbidden", fmt::join(plan.forbidden, ", ")));
  }
  auto found = place_values(plan, graph, axes, assignment.placements(result.choice));
  if (found.split.empty() && !may_stay_whole(graph, planned, ranks)) {
    fail_whole(graph, planned, ranks);
  }
  found.cost = result.time;
  found.bound = result.lower_bound;
  return found;
}

}  // namespace perigee::shard
