#include "lua/method/place.h"

#include <fmt/ranges.h>

#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/fail.h"
#include "base/text/match.h"
#include "plan/pipeline.h"

namespace perigee::lua {
namespace {

using methods::PlanRequest;

std::vector<std::string> axes_of(const plan::Plan& plan) {
  std::vector<std::string> axes;
  for (const auto& axis : plan.mesh.axes) axes.push_back(axis.name);
  return axes;
}

// An axis by its index in the mesh, and the placement there.
struct Position {
  size_t axis = 0;
  mesh::Placement placement;
};

// `partial`: the placement may be Partial.
Position position_of(const plan::Plan& plan, const AxisPlacement& at, std::string_view function,
                     bool partial) {
  const int axis = plan.mesh.find(at.axis);
  if (axis < 0) {
    const auto axes = axes_of(plan);
    fail("method", "plan:{} takes an axis of the mesh ({}), but got \"{}\"{}", function,
         fmt::join(axes, ", "), at.axis, did_you_mean(at.axis, axes));
  }
  const auto placements = mesh::parse_placements(at.placement);
  if (placements.size() != 1 || (!partial && placements[0].is_partial())) {
    fail("method", "plan:{} takes one placement, such as R or S0, but got \"{}\"", function,
         at.placement);
  }
  return {static_cast<size_t>(axis), placements.front()};
}

// Pins a value that an op computes.
void pin(plan::Plan& plan, const std::string& name, const Position& position) {
  auto& placements = plan.placements[name];
  placements.resize(plan.mesh.axes.size(), mesh::Placement::open());
  placements[position.axis] = position.placement;
}

mesh::AxisSet known_axes(const plan::Plan& plan, const std::string& text,
                         std::string_view function) {
  auto axes = mesh::AxisSet::parse(text);
  const auto known = axes_of(plan);
  for (const auto& axis : axes) {
    if (plan.mesh.find(axis) >= 0) continue;
    fail("method", "plan:{} takes axes of the mesh ({}), but got \"{}\"{}", function,
         fmt::join(known, ", "), axis, did_you_mean(axis, known));
  }
  return axes;
}

}  // namespace

int64_t place_inputs(plan::Plan& plan, const PlanRequest& request, const std::string& match,
                     const AxisPlacement& at) {
  const auto position = position_of(plan, at, "place", true);
  int64_t count = 0;
  std::vector<std::string> names;
  for (const auto& input : request.graph->inputs) {
    names.push_back(input.name);
    if (!matches(match, input.name)) continue;
    auto& placements = plan.placements[input.name];
    placements.resize(plan.mesh.axes.size());
    placements[position.axis] = position.placement;
    ++count;
  }
  if (count == 0) {
    fail("method", "plan:place needs a match, but \"{}\" matches no parameter or input{}", match,
         did_you_mean_pattern(match, names));
  }
  return count;
}

void pin_values(plan::Plan& plan, const PlanRequest& request,
                const std::vector<std::string>& values, const AxisPlacement& at) {
  const auto position = position_of(plan, at, "pin", true);
  const auto& graph = *request.graph;
  const auto names = graph::value_names(graph);
  std::map<std::string, size_t> known;
  for (size_t v = 0; v < names.size(); ++v) known.emplace(names[v], v);
  for (const auto& value : values) {
    const auto found = known.find(value);
    if (found == known.end()) {
      fail("method", "plan:pin takes names of values that ops compute, but got \"{}\"{}", value,
           did_you_mean(value, names));
    }
    if (graph.values[found->second].producer < 0) {
      fail("method",
           "plan:pin takes names of values that ops compute, but got the input \"{}\": use "
           "plan:place",
           value);
    }
    pin(plan, value, position);
  }
}

int64_t place_sent(plan::Plan& plan, const PlanRequest& request, int64_t part,
                   const AxisPlacement& at) {
  const auto parts = std::ssize(plan.pipeline.starts) + 1;
  if (part < 1 || part >= parts) {
    fail("method",
         "plan:place_sent takes a part of the pipeline after the first, below {}, but got {}",
         parts, part);
  }
  const auto position = position_of(plan, at, "place_sent", false);
  const auto& graph = *request.graph;
  const auto part_of = plan::parts_of(graph, plan.pipeline);
  const auto names = graph::value_names(graph);
  std::set<int32_t> sent;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto& node = graph.nodes[n];
    if (node.phase != graph::Phase::forward || part_of[n] != part) continue;
    node.each_operand([&](graph::ValueId v) {
      const auto producer = graph.values[v.index].producer;
      if (producer < 0 || part_of[producer] == plan::kEveryPart || part_of[producer] >= part)
        return;
      if (graph::is_floating(graph.type(v).dtype)) sent.insert(v.index);
    });
  }
  for (const auto v : sent) pin(plan, names[v], position);
  return std::ssize(sent);
}

void set_batch_axes(plan::Plan& plan, const std::string& axes) {
  plan.batch_axes = known_axes(plan, axes, "batch_axes");
}

int64_t set_copies(plan::Plan& plan, const std::string& axes) {
  plan.copy_axes = known_axes(plan, axes, "copies");
  plan.batch_axes = plan.batch_axes.without(plan.copy_axes);
  return plan::copies_of(plan);
}

int64_t add_average(plan::Plan& plan, const PlanRequest& request, const std::string& match,
                    plan::Average average) {
  if (average.every < 1) {
    fail("method", "plan:average's every must be at least 1 step, but got {}", average.every);
  }
  std::vector<std::string> names;
  for (const auto& input : request.graph->inputs) {
    if (input.kind != graph::Input::Kind::parameter) continue;
    names.push_back(input.name);
    if (matches(match, input.name)) average.parameters.push_back(input.name);
  }
  const auto count = std::ssize(average.parameters);
  if (count == 0) {
    fail("method", "plan:average needs a match, but \"{}\" matches no parameter{}", match,
         did_you_mean_pattern(match, names));
  }
  plan.averages.push_back(std::move(average));
  return count;
}

void scale_loss(plan::Plan& plan, std::optional<double> scale) {
  auto& precision = plan.precision;
  using Kind = plan::LossScale::Kind;
  if (precision.loss_scale.kind != Kind::none) {
    fail("method", "plan:scale_loss needs a loss that nothing else scales, but its scale is {}",
         name_of(precision.loss_scale.kind));
  }
  if (scale && !(*scale > 0)) {
    fail("method", "plan:scale_loss takes a number above 0 or \"given\", but got {}", *scale);
  }
  precision.loss_scale = {.kind = scale ? Kind::fixed : Kind::given,
                          .init_scale = scale.value_or(1)};
  precision.skip_nonfinite = true;
}

}  // namespace perigee::lua
