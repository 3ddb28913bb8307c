#include "lua/method/set_parts.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "base/fail.h"
#include "base/text/match.h"
#include "lua/method/plan_parts.h"
#include "methods/names.h"
#include "methods/order.h"
#include "methods/placed.h"
#include "methods/texts.h"
#include "schedule/schedule.h"

namespace perigee::lua {
namespace {

using methods::Config;
using methods::FieldTable;
using methods::Json;
using methods::PlanRequest;

// Runs f(). Its errors are of plan:FUNCTION, whatever their area.
template <class F>
auto as_call(std::string_view function, F f) {
  try {
    return f();
  } catch (const methods::PlacedError&) {
    throw;
  } catch (const Error& error) {
    std::string_view text = error.what();
    if (text.starts_with('[')) text.remove_prefix(std::min(text.find("] ") + 2, text.size()));
    fail("method", "plan:{}: {}", function, text);
  }
}

// Returns a plan with the mesh and the stages of `plan`, in which plan::verify checks one part.
plan::Plan frame_of(const plan::Plan& plan) {
  plan::Plan frame;
  frame.graph_hash = plan.graph_hash;
  frame.mesh = plan.mesh;
  frame.batch_axes = plan.batch_axes;
  frame.pipeline = plan.pipeline;
  frame.rewrites = plan.rewrites;
  frame.adapters = plan.adapters;
  return frame;
}

// Returns `current` with the given fields in place of its own.
template <class C>
C merge(const FieldTable<C>& table, const Config& given, std::string_view part, C current) {
  methods::check_fields(table.fields(), given.fields, part);
  return table.parse(given, part, std::move(current));
}

void refuse_list(const Config& given, std::string_view part) {
  if (given.items.empty()) return;
  fail("method", "{} takes named fields, but got a list", part);
}

// Returns the parameters that the patterns match, in the patterns' order.
std::vector<std::string> matching_parameters(const graph::Graph& graph,
                                             const std::vector<std::string>& patterns) {
  std::vector<std::string> found, names;
  std::set<std::string> seen;
  for (const auto& input : graph.inputs) {
    if (input.kind == graph::Input::Kind::parameter) names.push_back(input.name);
  }
  for (const auto& pattern : patterns) {
    bool any = false;
    for (const auto& name : names) {
      if (name != pattern && !matches(pattern, name)) continue;
      any = true;
      if (seen.insert(name).second) found.push_back(name);
    }
    if (!any) {
      fail("method", "parameters must match parameters of the model, but \"{}\" matches none{}",
           pattern, did_you_mean_pattern(pattern, names));
    }
  }
  return found;
}

}  // namespace

int64_t set_recompute(plan::Plan& plan, const PlanRequest& request, const Given& given) {
  return as_call("recompute", [&] {
    const auto& graph = *request.graph;
    const auto config = methods::split_config(given);
    auto recompute = merge(recompute_part(), config, "recompute", plan.recompute);
    const auto patterns = methods::texts(config.items, "recompute", "scopes");
    if (!patterns.empty()) {
      if (config.has("regions")) fail("method", "scopes or regions are given, but got both");
      recompute.regions.clear();
      for (auto& scope : methods::matching_scopes(graph, patterns, "recompute")) {
        recompute.regions.push_back({std::move(scope)});
      }
    }
    const auto named = [&](std::vector<std::string>& ops, std::string_view field) {
      ops = methods::named_ops(plan, graph, ops, field, "recompute");
    };
    named(recompute.only, "only");
    named(recompute.keep, "keep");
    for (auto& [scope, ops] : recompute.keep_in) named(ops, "keep_in");
    auto frame = frame_of(plan);
    frame.recompute = recompute;
    plan::verify(frame, graph);
    plan.recompute = std::move(recompute);
    return std::ssize(plan.recompute.regions);
  });
}

void set_offload(plan::Plan& plan, const PlanRequest& request, const Given& given) {
  as_call("offload", [&] {
    const auto& graph = *request.graph;
    const auto config = methods::split_config(given);
    auto offload = merge(offload_part(), config, "offload", plan.offload);
    auto patterns = methods::texts(config.items, "offload", "scopes");
    if (!patterns.empty() && config.has("activations")) {
      fail("method", "scopes or activations are given, but got both");
    }
    if (config.has("activations")) patterns = offload.activations;
    if (!patterns.empty()) {
      offload.activations = methods::matching_scopes(graph, patterns, "offload");
    }
    auto frame = frame_of(plan);
    frame.offload = offload;
    frame.offload.parameters = false;  // a later method may make the units that this requires
    plan::verify(frame, graph);
    plan.offload = std::move(offload);
  });
}

namespace {

// Sets a part that has fields alone: no list, and no names to resolve.
template <class Part, class Table>
void set_fields(plan::Plan& plan, const PlanRequest& request, const Given& given, const char* name,
                const Table& table, Part plan::Plan::*part) {
  as_call(name, [&] {
    const auto config = methods::split_config(given);
    refuse_list(config, name);
    auto frame = frame_of(plan);
    frame.*part = merge(table, config, name, plan.*part);
    plan::verify(frame, *request.graph);
    plan.*part = std::move(frame.*part);
  });
}

}  // namespace

void set_overlap(plan::Plan& plan, const PlanRequest& request, const Given& given) {
  set_fields(plan, request, given, "overlap", overlap_part(), &plan::Plan::overlap);
}

void set_communication(plan::Plan& plan, const PlanRequest& request, const Given& given) {
  set_fields(plan, request, given, "communication", communication_part(),
             &plan::Plan::communication);
}

int64_t set_pipeline(plan::Plan& plan, const PlanRequest& request, const Given& given) {
  return as_call("pipeline", [&]() -> int64_t {
    const auto config = methods::split_config(given);
    refuse_list(config, "pipeline");
    auto pipeline = merge(pipeline_part(), config, "pipeline", plan.pipeline);
    if (!pipeline.cuts()) fail("method", "axis must name the axis of the stages, but got none");
    if (config.has("schedule") && !config.has("chunks")) {
      pipeline.chunks = default_chunks(pipeline.schedule);
    }
    auto frame = frame_of(plan);
    frame.pipeline = pipeline;
    plan::verify(frame, *request.graph);
    const auto stages = plan.mesh.size_of(pipeline.axis);
    if (stages > 1) plan.pipeline = std::move(pipeline);
    return stages;
  });
}

void set_precision(plan::Plan& plan, const PlanRequest& request, const Given& given) {
  as_call("precision", [&] {
    const auto& graph = *request.graph;
    const auto config = methods::split_config(given);
    refuse_list(config, "precision");
    auto precision = merge(precision_part(), config, "precision", plan.precision);
    precision.allow = methods::named_ops(graph, precision.allow, "allow", "precision");
    precision.deny = methods::named_ops(graph, precision.deny, "deny", "precision");
    precision.promote = methods::named_ops(graph, precision.promote, "promote", "precision");
    if (config.has("scopes")) {
      precision.scopes = methods::matching_scopes(graph, precision.scopes, "precision");
    }
    plan::verify(precision, graph);
    plan.precision = std::move(precision);
  });
}

int64_t add_units(plan::Plan& plan, const PlanRequest& request, const Given& given) {
  return as_call("units", [&] {
    const auto& graph = *request.graph;
    if (!given.is_array() && !given.empty()) {
      fail("method", "units are a list of {{name, parameters, axes, ...}}, but got {}",
           given.dump());
    }
    auto frame = frame_of(plan);
    frame.units = plan.units;
    for (const auto& item : given) {
      if (!item.is_object()) fail("method", "a unit is a table of fields, but got {}", item.dump());
      auto unit = merge(unit_part(), {.fields = item}, "unit", plan::Unit{});
      unit.parameters = matching_parameters(graph, unit.parameters);
      frame.units.push_back(std::move(unit));
    }
    for (const auto& unit : frame.units) {
      for (const auto& name : unit.parameters) {
        const auto placed = plan.placements.find(name);
        if (placed != plan.placements.end()) frame.placements.insert(*placed);
      }
    }
    plan::verify(frame, graph);
    plan.units = std::move(frame.units);
    return std::ssize(plan.units);
  });
}

void use_method(plan::Plan& plan, const PlanRequest& request, const UsedMethod& used,
                std::span<const std::shared_ptr<const methods::Method>> defined) {
  if (used.name == "parallel_mode") {
    fail("method",
         "plan:use takes methods that keep the mesh, but got \"parallel_mode\": list it in the "
         "strategy");
  }
  const auto strategy = methods::from_json(Json::array({Json::array({used.name, used.config})}),
                                           "plan:use", defined);
  const auto& [method, config] = strategy.methods.front();
  auto* applied = request.applied;
  if (applied && std::find(applied->begin(), applied->end(), used.name) != applied->end()) {
    fail("method",
         "plan:use takes methods that the strategy neither lists nor uses already, but got \"{}\": "
         "use each once",
         used.name);
  }
  if (applied) methods::check_conflicts(used.name, *applied);
  method->apply(plan, config, request);
  if (applied) applied->push_back(used.name);
}

}  // namespace perigee::lua
