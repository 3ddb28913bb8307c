#include "methods/data/unit_options.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "base/fail.h"
#include "base/log_format.h"
#include "base/text/bytes.h"
#include "base/text/match.h"
#include "methods/names.h"
#include "plan/pipeline.h"

namespace perigee::methods {
namespace {

using graph::Graph;
using graph::Input;

constexpr int64_t kMinParameters = 100'000;  // ATorch's default

// Kinds of axes on which parameters are replicated unless a method places them.
const std::vector<std::string> kAxes = {"data", "zero", "context", "sequence"};

// The axes in the mesh's order, and how many ranks they have.
struct StorageAxes {
  mesh::AxisSet axes;
  int64_t ranks = 1;
};

StorageAxes storage_axes(const plan::Plan& plan, const UnitConfig& given, const Method& method) {
  const mesh::AxisSet by_default(plan.mesh.size_of("zero") > 1 ? "zero" : "data");
  const auto wanted = given.axis.value_or(by_default);
  std::vector<std::string> names;
  for (const auto& axis : plan.mesh.axes) names.push_back(axis.name);
  for (const auto& axis : wanted) {
    if (std::find(kAxes.begin(), kAxes.end(), mesh::kind_of(axis)) == kAxes.end()) {
      fail(method.name(), "axis must be data, zero, context or sequence, but got \"{}\"{}", axis,
           did_you_mean(axis, kAxes));
    }
    if (std::find(names.begin(), names.end(), axis) == names.end()) {
      fail(method.name(), "axis \"{}\" must be in parallel_mode, but the mesh has {}", axis,
           names.empty() ? "no axes" : join(names));
    }
  }
  StorageAxes storage;
  for (const auto& axis : plan.mesh.axes) {
    if (!wanted.contains(axis.name)) continue;
    storage.axes.insert(axis.name);
    storage.ranks *= axis.size;
  }
  return storage;
}

struct Parameter {
  const Input* input = nullptr;
  int64_t elements = 0, bytes = 0;
  size_t first_use = std::numeric_limits<size_t>::max();
  int part = 0;  // of the stage, where stages have several
  bool trained = true;
};

// Returns all parameters in the order in which the forward pass reads them.
std::vector<Parameter> parameters_of(const PlanRequest& request, const plan::Pipeline& pipeline) {
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

std::vector<std::string> parameter_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const auto& input : graph.inputs) {
    if (input.kind == graph::Input::Kind::parameter) names.push_back(input.name);
  }
  return names;
}

// Returns the scopes that match a pattern or are of a module class.
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
      fail(method.name(), "match must match scopes of the model, but \"{}\" matches none{}",
           pattern, did_you_mean_pattern(pattern, paths));
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

// Returns the innermost of the scopes that contains the parameter, or nullptr.
const std::string* scope_of(const std::string& name, const std::set<std::string>& scopes) {
  const std::string* found = nullptr;
  for (const auto& scope : scopes) {
    if (below(name, scope) && (!found || scope.size() > found->size())) found = &scope;
  }
  return found;
}

// Units by name, in creation order.
class Units {
 public:
  // `together`: all trained parameters make one unit.
  Units(mesh::AxisSet axes, int level, bool together, const Graph& graph,
        const plan::Overlap& overlap)
      : axes_(std::move(axes)),
        level_(level),
        together_(together),
        graph_(graph),
        overlap_(overlap) {}

  // Adds the parameter to the unit of that name. Parameters share a unit only if they have one
  // type, are in one part of a stage and all or none of them are trained, and, where gradients are
  // stored in parts, all or none of their gradients are deferred.
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

  // Returns the units. Matrices come first in each, so that parameters with the same treatment by
  // the optimizer, weights or biases, are contiguous.
  std::vector<plan::Unit> take() {
    for (auto& unit : units_) {
      std::stable_partition(unit.parameters.begin(), unit.parameters.end(), [&](const auto& name) {
        return graph_.type(graph_.find_input(name)->value).shape.size() > 1;
      });
    }
    return std::move(units_);
  }

 private:
  mesh::AxisSet axes_;
  int level_;
  bool together_;
  const Graph& graph_;
  const plan::Overlap& overlap_;
  std::vector<plan::Unit> units_;
  std::map<std::tuple<std::string, graph::DType, int>, size_t> index_;
};

// Appends units of at least `min_size` elements or bytes, in the list's order.
void add_by_size(Units& units, const std::vector<Parameter>& parameters, int64_t min_size,
                 bool count_bytes) {
  int64_t number = 0, size = 0;
  for (const auto& parameter : parameters) {
    if (size >= min_size) {
      ++number;
      size = 0;
    }
    units.add("size." + std::to_string(number), parameter);
    size += count_bytes ? parameter.bytes : parameter.elements;
  }
}

// Appends a unit for each scope, and one for the parameters between two scopes in order of use.
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

const FieldTable<UnitConfig>& unit_fields() {
  using C = UnitConfig;
  static const FieldTable<C> table(
      {{.name = "axis",
        .member = &C::axis,
        .otherwise = "`zero` where the mesh has it, else `data`",
        .doc = "the axes over which parameters are stored in parts: of the kinds data, zero, "
               "context and sequence"},
       {.name = "match",
        .member = &C::match,
        .doc = "patterns of scopes (`blocks.*`) that make a unit each"},
       {.name = "atorch_wrap_cls",
        .member = &C::wrap_classes,
        .doc = "module classes that make a unit each"},
       {.name = "atorch_size_based_min_num_params",
        .member = &C::min_parameters,
        .at_least = 1,
        .doc = "units are filled in the order of use up to this number of parameters; excludes "
               "match and atorch_wrap_cls"},
       {.name = "trainable_outmost",
        .member = &C::trainable_outmost,
        .doc = "all trained parameters make one unit, frozen ones the other units"},
       {.name = "ignored",
        .member = &C::ignored,
        .doc = "patterns of parameters that stay replicated"},
       {.name = "atorch_ignored_cls",
        .member = &C::ignored_classes,
        .doc = "module classes whose parameters stay replicated"}});
  return table;
}

bool add_units(plan::Plan& plan, const UnitConfig& given, const PlanRequest& request,
               const Method& method, int level) {
  const auto& graph = *request.graph;
  const auto storage = storage_axes(plan, given, method);
  const auto& ignored = given.ignored.list;
  const auto names = parameter_names(graph);
  for (const auto& pattern : ignored) {
    if (std::ranges::any_of(names, [&](const auto& name) { return matches(pattern, name); }))
      continue;
    fail(method.name(), "ignored must match parameters of the model, but \"{}\" matches none{}",
         pattern, did_you_mean_pattern(pattern, names));
  }
  const auto ignored_scopes = scopes_of(graph, {}, given.ignored_classes.list, method);
  auto match = given.match.list;
  const auto& classes = given.wrap_classes.list;
  const bool sized = given.min_parameters.has_value();
  if (sized && !(match.empty() && classes.empty())) {
    fail(method.name(),
         "units are made by scope or by size, but got atorch_size_based_min_num_params and {}",
         match.empty() ? "atorch_wrap_cls" : "match");
  }
  const auto min_parameters = given.min_parameters.value_or(kMinParameters);
  const bool by_default = match.empty() && classes.empty() && !sized;
  if (by_default && level == 3 &&
      std::any_of(graph.scopes.begin(), graph.scopes.end(),
                  [](const auto& scope) { return matches("blocks.*", scope.path); })) {
    match = {"blocks.*"};
  }
  const auto scopes = scopes_of(graph, match, classes, method);

  if (storage.axes.contains("zero")) plan.batch_axes.insert("zero");
  if (storage.ranks == 1) {
    plan.decisions.push_back(
        {std::string(method.name()),
         fmt::format("axis {} has one rank: there is nothing to shard", storage.axes.text())});
    return false;
  }

  auto parameters = parameters_of(request, plan.pipeline);
  std::erase_if(parameters, [&](const Parameter& parameter) {
    const auto& name = parameter.input->name;
    const auto placed = plan.placements.find(name);
    const bool sharded = placed != plan.placements.end() &&
                         std::any_of(storage.axes.begin(), storage.axes.end(),
                                     [&](const std::string& axis) {
                                       return !placed->second[plan.mesh.find(axis)].is_replicate();
                                     });
    return sharded || matches_any(ignored, name) || scope_of(name, ignored_scopes);
  });
  if (parameters.empty()) {
    plan.decisions.push_back(
        {std::string(method.name()),
         fmt::format("all parameters are ignored, or split over {} already: there is nothing to "
                     "shard",
                     storage.axes.text())});
    return false;
  }
  Units units(storage.axes, level, given.trainable_outmost, graph, plan.overlap);
  if (!scopes.empty()) {
    add_by_scope(units, parameters, scopes);
  } else if (by_default && level < 3) {
    // Gradients are computed in the reverse order of use.
    std::reverse(parameters.begin(), parameters.end());
    auto min_bytes = plan.communication.bucket_bytes;
    if (const auto count = plan.communication.buckets; count > 0) {
      int64_t total = 0;
      for (const auto& parameter : parameters) total += parameter.bytes;
      min_bytes = std::max(min_bytes, (total + count - 1) / count);
    }
    add_by_size(units, parameters, min_bytes, true);
  } else {
    add_by_size(units, parameters, min_parameters, false);
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
  for (const auto& axis : plan.units[0].axes) ranks *= plan.mesh.size_of(axis);
  return fmt::format("{} unit{} of up to {} over {} ({} ranks)", plan.units.size(),
                     plan.units.size() == 1 ? "" : "s", bytes_text(static_cast<double>(most)),
                     plan.units[0].axes.text(), ranks);
}

void note_no_effects(plan::Plan& plan, const Config& config, const Method& method) {
  for (const auto& field : method.fields()) {
    if (field.no_effect.empty() || !config.has(field.name)) continue;
    log::warn("{}: {} has no effect: {}", method.name(), field.name, field.no_effect);
    plan.decisions.push_back({std::string(method.name()),
                              fmt::format("{} has no effect: {}", field.name, field.no_effect)});
  }
}

}  // namespace perigee::methods
