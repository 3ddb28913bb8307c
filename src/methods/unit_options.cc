#include "methods/unit_options.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/log.h"
#include "base/match.h"
#include "methods/texts.h"
#include "plan/pipeline.h"

namespace perigee::methods {
namespace {

using graph::Graph;
using graph::Input;

constexpr int64_t kMinParameters = 100'000;  // ATorch's default

// The axes that parameters are whole on unless a method places them.
const std::vector<std::string> kAxes = {"data", "zero", "context", "sequence"};

std::vector<std::string> strings(const Config& config, const char* key, const Method& method) {
  if (!config.fields.contains(key)) return {};
  return texts(config.fields[key], method.name(), key);
}

// The axes in the mesh's order, comma separated, and how many ranks they have.
struct Cut {
  std::string axes;
  int64_t ranks = 1;
};

Cut read_axis(const plan::Plan& plan, const Config& config, const Method& method) {
  std::vector<std::string> wanted = {plan.mesh.size_of("zero") > 1 ? "zero" : "data"};
  if (config.fields.contains("axis")) {
    wanted = mesh::split_axes(config.fields["axis"].get<std::string>());
  }
  std::vector<std::string> names;
  for (const auto& axis : plan.mesh.axes) names.push_back(axis.name);
  for (const auto& axis : wanted) {
    if (std::find(kAxes.begin(), kAxes.end(), mesh::kind_of(axis)) == kAxes.end()) {
      fail(method.name(), "axis is data, zero, context or sequence, but got \"{}\"{}", axis,
           did_you_mean(axis, kAxes));
    }
    if (std::find(names.begin(), names.end(), axis) == names.end()) {
      std::string known;
      for (const auto& name : names) known += (known.empty() ? "" : ", ") + name;
      fail(method.name(), "axis \"{}\" must be in parallel_mode, but the mesh has {}", axis,
           known.empty() ? "no axes" : known);
    }
  }
  Cut cut;
  for (const auto& axis : plan.mesh.axes) {
    if (std::find(wanted.begin(), wanted.end(), axis.name) == wanted.end()) continue;
    cut.axes += (cut.axes.empty() ? "" : ",") + axis.name;
    cut.ranks *= axis.size;
  }
  return cut;
}

struct Parameter {
  const Input* input = nullptr;
  int64_t elements = 0, bytes = 0;
  size_t first_use = std::numeric_limits<size_t>::max();
  int part = 0;  // of the stage, where stages have several
  bool trained = true;
};

// Trained or not, in the order in which the forward pass reads them.
std::vector<Parameter> parameters_of(const Request& request, const plan::Pipeline& pipeline) {
  const auto& graph = *request.graph;
  const bool parts = pipeline.cuts() && pipeline.chunks > 1;
  const auto users = parts ? plan::first_users(graph, pipeline) : std::vector<int>();
  std::map<int32_t, size_t> first;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    graph.nodes[n].each_operand([&](graph::ValueId v) { first.emplace(v.index, n); });
  }
  std::vector<Parameter> list;
  for (const auto& input : graph.inputs) {
    if (input.kind != Input::Kind::parameter) continue;
    Parameter parameter{&input, graph.type(input.value).numel(), graph.type(input.value).bytes()};
    if (const auto at = first.find(input.value.index); at != first.end()) {
      parameter.first_use = at->second;
    }
    parameter.trained = input.trainable && !matches_any(request.frozen, input.name);
    if (parts) parameter.part = std::max(users[input.value.index], 0);
    list.push_back(parameter);
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const auto& a, const auto& b) { return a.first_use < b.first_use; });
  return list;
}

bool below(const std::string& name, const std::string& scope) {
  return scope.empty() ||
         (name.size() > scope.size() && name.starts_with(scope) && name[scope.size()] == '.');
}

// The scopes that a pattern or a module class picks.
std::set<std::string> scopes_of(const Graph& graph, const std::vector<std::string>& patterns,
                                const std::vector<std::string>& classes, const Method& method) {
  std::set<std::string> picked;
  std::vector<std::string> paths, types;
  for (const auto& scope : graph.scopes) {
    paths.push_back(scope.path);
    types.push_back(scope.type);
  }
  for (const auto& pattern : patterns) {
    const size_t before = picked.size();
    for (const auto& path : paths) {
      if (matches(pattern, path)) picked.insert(path);
    }
    if (picked.size() == before) {
      fail(method.name(), "match must pick scopes of the model, but \"{}\" picks none{}", pattern,
           did_you_mean(pattern, paths));
    }
  }
  for (const auto& type : classes) {
    const size_t before = picked.size();
    for (size_t s = 0; s < types.size(); ++s) {
      if (types[s] == type) picked.insert(paths[s]);
    }
    if (picked.size() == before) {
      fail(method.name(), "the model must have modules of each class, but has no \"{}\"{}", type,
           did_you_mean(type, types));
    }
  }
  return picked;
}

// The innermost of the scopes that holds the parameter, or nullptr.
const std::string* scope_of(const std::string& name, const std::set<std::string>& scopes) {
  const std::string* found = nullptr;
  for (const auto& scope : scopes) {
    if (below(name, scope) && (!found || scope.size() > found->size())) found = &scope;
  }
  return found;
}

// Units by name, in the order in which they are made.
class Units {
 public:
  // `together`: what is trained makes one unit, whatever its name.
  Units(std::string axes, int level, bool together, const Graph& graph,
        const plan::Overlap& overlap)
      : axes_(std::move(axes)),
        level_(level),
        together_(together),
        graph_(graph),
        overlap_(overlap) {}

  // Trained and frozen parameters, different types, what parts of a stage have each, and, where
  // gradients are in parts, those that are deferred, do not share a unit.
  void add(std::string name, const Parameter& parameter) {
    const auto dtype = graph_.type(parameter.input->value).dtype;
    const auto& deferred = overlap_.deferred;
    if (!parameter.trained) {
      name += " frozen";
    } else if (together_) {
      name = "trainable";
    }
    if (level_ > 1 &&
        std::find(deferred.begin(), deferred.end(), parameter.input->name) != deferred.end()) {
      name += " deferred";
    }
    const auto [at, added] = index_.try_emplace({name, dtype, parameter.part}, units_.size());
    if (added) {
      const auto taken = [&] {
        return std::any_of(units_.begin(), units_.end(),
                           [&](const plan::Unit& unit) { return unit.name == name; });
      };
      if (taken() && parameter.part > 0) name += fmt::format(" of part {}", parameter.part);
      if (taken()) name += " " + std::string(graph::name_of(dtype));
      units_.push_back({name, {}, axes_, level_, true});
    }
    units_[at->second].parameters.push_back(parameter.input->name);
  }

  // Matrices first: what the optimizer treats alike, weights or biases, then lies together.
  std::vector<plan::Unit> take() {
    for (auto& unit : units_) {
      std::stable_partition(unit.parameters.begin(), unit.parameters.end(), [&](const auto& name) {
        return graph_.type(graph_.find_input(name)->value).shape.size() > 1;
      });
    }
    return std::move(units_);
  }

 private:
  std::string axes_;
  int level_;
  bool together_;
  const Graph& graph_;
  const plan::Overlap& overlap_;
  std::vector<plan::Unit> units_;
  std::map<std::tuple<std::string, graph::DType, int>, size_t> index_;
};

// Appends units of at least so many elements or bytes, in the list's order.
void add_by_size(Units& units, const std::vector<Parameter>& parameters, int64_t least,
                 bool count_bytes) {
  int64_t number = 0, size = 0;
  for (const auto& parameter : parameters) {
    if (size >= least) {
      ++number;
      size = 0;
    }
    units.add("size." + std::to_string(number), parameter);
    size += count_bytes ? parameter.bytes : parameter.elements;
  }
}

// Appends a unit for each scope, and for what is between them in the order of use.
void add_by_scope(Units& units, const std::vector<Parameter>& parameters,
                  const std::set<std::string>& scopes) {
  int64_t rest = 0;
  bool open = false;
  for (const auto& parameter : parameters) {
    const auto* scope = scope_of(parameter.input->name, scopes);
    if (scope) {
      units.add(*scope, parameter);
      rest += open;
      open = false;
    } else {
      units.add("rest." + std::to_string(rest), parameter);
      open = true;
    }
  }
}

}  // namespace

std::vector<Field> unit_fields() {
  return {
      {"axis", "string",
       "the axis that parts are cut over; default zero where the mesh has it, else data"},
      {"match", "any", "scopes that make a unit each: a pattern or a list of them (blocks.*)"},
      {"atorch_wrap_cls", "any", "module classes that make a unit each"},
      {"atorch_size_based_min_num_params", "integer",
       "units grow in the order of use to so many parameters; not with match or classes"},
      {"trainable_outmost", "boolean",
       "parameters that are trained make one unit, frozen ones the others; default false"},
      {"ignored", "any", "parameters that stay whole: a pattern or a list of them"},
      {"atorch_ignored_cls", "any", "module classes whose parameters stay whole"},
  };
}

bool add_units(plan::Plan& plan, const Config& config, const Request& request, const Method& method,
               int level) {
  const auto& graph = *request.graph;
  const auto cut = read_axis(plan, config, method);
  const auto ignored = strings(config, "ignored", method);
  const auto ignored_scopes =
      scopes_of(graph, {}, strings(config, "atorch_ignored_cls", method), method);
  auto match = strings(config, "match", method);
  const auto classes = strings(config, "atorch_wrap_cls", method);
  const bool sized = config.fields.contains("atorch_size_based_min_num_params");
  if (sized && !(match.empty() && classes.empty())) {
    fail(method.name(),
         "units are made by scope or by size, but got atorch_size_based_min_num_params and {}",
         match.empty() ? "atorch_wrap_cls" : "match");
  }
  const auto least =
      sized ? config.fields["atorch_size_based_min_num_params"].get<int64_t>() : kMinParameters;
  if (least < 1) {
    fail(method.name(), "atorch_size_based_min_num_params is at least 1, but got {}", least);
  }
  const bool by_default = match.empty() && classes.empty() && !sized;
  if (by_default && level == 3 &&
      std::any_of(graph.scopes.begin(), graph.scopes.end(),
                  [](const auto& scope) { return matches("blocks.*", scope.path); })) {
    match = {"blocks.*"};
  }
  const auto scopes = scopes_of(graph, match, classes, method);

  if (cut.axes.find("zero") != std::string::npos) {
    const auto batch = mesh::split_axes(plan.batch_axes);
    if (std::find(batch.begin(), batch.end(), "zero") == batch.end()) {
      plan.batch_axes += plan.batch_axes.empty() ? "zero" : ",zero";
    }
  }
  if (cut.ranks == 1) {
    plan.decisions.push_back(
        {std::string(method.name()),
         fmt::format("axis {} has one rank: there is nothing to shard", cut.axes)});
    return false;
  }

  auto parameters = parameters_of(request, plan.pipeline);
  const auto axes = mesh::split_axes(cut.axes);
  std::erase_if(parameters, [&](const Parameter& parameter) {
    const auto& name = parameter.input->name;
    const auto placed = plan.placements.find(name);
    const bool sharded = placed != plan.placements.end() &&
                         std::any_of(axes.begin(), axes.end(), [&](const std::string& axis) {
                           return !placed->second[plan.mesh.find(axis)].is_replicate();
                         });
    return sharded || matches_any(ignored, name) || scope_of(name, ignored_scopes);
  });
  const bool together = config.fields.value("trainable_outmost", false);
  Units units(cut.axes, level, together, graph, plan.overlap);
  if (!scopes.empty()) {
    add_by_scope(units, parameters, scopes);
  } else if (by_default && level < 3) {
    // Gradients come in the reverse order of use.
    std::reverse(parameters.begin(), parameters.end());
    auto least_bytes = plan.communication.bucket_bytes;
    if (const auto count = plan.communication.buckets; count > 0) {
      int64_t total = 0;
      for (const auto& parameter : parameters) total += parameter.bytes;
      least_bytes = std::max(least_bytes, (total + count - 1) / count);
    }
    add_by_size(units, parameters, least_bytes, true);
  } else {
    add_by_size(units, parameters, least, false);
  }
  for (auto& unit : units.take()) plan.units.push_back(std::move(unit));
  return true;
}

std::string describe_units(const plan::Plan& plan, const Graph& graph) {
  int64_t most = 0;
  for (const auto& unit : plan.units) {
    int64_t bytes = 0;
    for (const auto& name : unit.parameters) {
      bytes += graph.type(graph.find_input(name)->value).bytes();
    }
    most = std::max(most, bytes);
  }
  if (plan.units.empty()) return "no units";
  int64_t ranks = 1;
  for (const auto& axis : mesh::split_axes(plan.units[0].axes)) ranks *= plan.mesh.size_of(axis);
  return fmt::format("{} unit{} of up to {:.4g} MiB over {} ({} ranks)", plan.units.size(),
                     plan.units.size() == 1 ? "" : "s", static_cast<double>(most) / (1 << 20),
                     plan.units[0].axes, ranks);
}

void note_no_effect(plan::Plan& plan, const Config& config, const Method& method,
                    const std::string& key, const std::string& why) {
  if (!config.fields.contains(key)) return;
  log::warn("{}: {} has no effect: {}", method.name(), key, why);
  plan.decisions.push_back(
      {std::string(method.name()), fmt::format("{} has no effect: {}", key, why)});
}

}  // namespace perigee::methods
