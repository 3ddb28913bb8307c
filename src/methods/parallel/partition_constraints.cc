// partition_constraints: which dims of which ops may be split over an axis, as in nnScaler's
// AutoDist (Lin et al. 2024). Ops whose sharding is not allowed are pinned to allowed placements.
#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <set>

#include "base/fail.h"
#include "methods/field_table.h"
#include "shard/partition.h"
#include "shard/propagate/matched_rules.h"
#include "shard/propagate/node_sharding.h"

namespace perigee::methods {
namespace {

using graph::Graph;
using graph::Node;
using graph::Phase;
using graph::ValueId;
using mesh::Placement;
using mesh::Placements;

struct OperandDim {
  int operand = 0, dim = 0;
  bool operator==(const OperandDim&) const = default;
};

struct Constraint {
  std::string op;
  std::string parent;            // of module paths, or of their types
  std::vector<OperandDim> dims;  // that may be split
  bool replica = false;          // whether the op may run whole on every rank
  std::string place;             // for messages: "c.yaml:3", "item 2"
  int64_t matches = 0;
};

constexpr const char* kMethod = "partition_constraints";

OperandDim parse_dim(const Json& item, const std::string& place) {
  OperandDim parsed;
  int read = 0;
  const auto text = item.is_string() ? item.get<std::string>() : "";
  const bool good = std::sscanf(text.c_str(), "%d , %d %n", &parsed.operand, &parsed.dim, &read) ==
                        2 &&
                    read == static_cast<int>(text.size()) && parsed.operand >= 0 && parsed.dim >= 0;
  if (!good) {
    fail(kMethod, "{}: allowed_partition_dims are \"INPUT,DIM\", both from 0, but got {}", place,
         item.dump());
  }
  return parsed;
}

Constraint parse(const Json& item, size_t index) {
  Constraint constraint;
  constraint.place = item.is_object() && item.contains("place") && item["place"].is_string()
                         ? item["place"].get<std::string>()
                         : fmt::format("item {}", index + 1);
  const auto& place = constraint.place;
  static const std::vector<std::string> keys = {"name", "parent_module", "allowed_partition_dims",
                                                "replica_allowed"};
  if (!item.is_object())
    fail(kMethod, "{}: a constraint is a table, but got {}", place, item.dump());
  for (const auto& [key, value] : item.items()) {
    if (key == "place" || std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    fail(kMethod, "{}: a constraint has no \"{}\"{}", place, key, did_you_mean(key, keys));
  }
  for (const auto& key : keys) {
    if (!item.contains(key)) fail(kMethod, "{}: a constraint needs {}, but has none", place, key);
  }
  const auto text = [&](const char* key) {
    if (!item[key].is_string()) {
      fail(kMethod, "{}: {} is a text, but got {}", place, key, item[key].dump());
    }
    return item[key].get<std::string>();
  };
  constraint.op = text("name");
  constraint.parent = text("parent_module");
  const auto& dims = item["allowed_partition_dims"];
  if (!dims.is_array() && !dims.empty()) {
    fail(kMethod, "{}: allowed_partition_dims is a list, but got {}", place, dims.dump());
  }
  for (const auto& dim : dims) constraint.dims.push_back(parse_dim(dim, place));
  if (!item["replica_allowed"].is_boolean()) {
    fail(kMethod, "{}: replica_allowed is true or false, but got {}", place,
         item["replica_allowed"].dump());
  }
  constraint.replica = item["replica_allowed"];
  if (constraint.dims.empty() && !constraint.replica) {
    fail(kMethod,
         "{}: an op is split or replicated, but allowed_partition_dims is empty and "
         "replica_allowed is false",
         place);
  }
  return constraint;
}

// Returns the components of a dotted path without numbers.
std::vector<std::string> components(const std::string& path) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < path.size();) {
    const auto end = std::min(path.find('.', begin), path.size());
    auto part = path.substr(begin, end - begin);
    const bool number = std::all_of(part.begin(), part.end(),
                                    [](char c) { return c >= '0' && c <= '9'; });
    if (!number) parts.push_back(std::move(part));
    begin = end + 1;
  }
  return parts;
}

bool ends_with(const std::vector<std::string>& path, const std::vector<std::string>& end) {
  return end.size() <= path.size() && std::equal(end.rbegin(), end.rend(), path.rbegin());
}

// The modules that contain ops, by path.
class Modules {
 public:
  explicit Modules(const Graph& graph) {
    for (const auto& scope : graph.scopes) types_[scope.path] = scope.type;
  }

  // Returns whether the name ends the path of the scope, of a scope around it, or of their types.
  bool is_within(const std::string& scope, const std::string& name) const {
    const auto wanted = components(name);
    for (std::string path = scope;; path = path.substr(0, path.rfind('.'))) {
      if (ends_with(components(path), wanted) || ends_with(types_along(path), wanted)) return true;
      if (path.find('.') == std::string::npos) break;
    }
    return wanted.empty();
  }

 private:
  std::vector<std::string> types_along(const std::string& path) const {
    std::vector<std::string> types;
    for (size_t end = path.find('.');; end = path.find('.', end + 1)) {
      const auto found = types_.find(path.substr(0, end));
      if (found != types_.end() && found->second != "ModuleList" && !found->second.empty()) {
        types.push_back(found->second);
      }
      if (end == std::string::npos) return types;
    }
  }

  std::map<std::string, std::string> types_;
};

// Pins the ops of a graph to placements that their constraints allow, on one axis.
class Constrained {
 public:
  Constrained(plan::Plan& plan, const Graph& graph, std::vector<Constraint>& constraints, int axis)
      : plan_(plan),
        graph_(graph),
        constraints_(constraints),
        axis_(axis),
        rules_(graph, plan),
        names_(graph::value_names(graph)) {}

  // Returns how many ops have another sharding than without constraints.
  int64_t run() {
    find_ops();
    constexpr int kRounds = 4;  // the pins of one op may change the sharding of another
    for (int round = 0;; ++round) {
      const auto sharding = shard::propagate(graph_, plan_);
      std::vector<size_t> wrong;
      for (const auto& [n, c] : ops_) {
        if (!allows(constraints_[c], sharding, n)) wrong.push_back(n);
      }
      if (wrong.empty()) return static_cast<int64_t>(pinned_.size());
      if (round == kRounds) {
        fail(kMethod,
             "{}: {} in {} cannot keep its constraint together with the plan's other pins: {}",
             constraints_[ops_[wrong[0]]].place, graph_.nodes[wrong[0]].op,
             graph_.nodes[wrong[0]].scope, "allow another dim, or replica_allowed");
      }
      for (const auto n : wrong) {
        pin(n, constraints_[ops_[n]]);
        pinned_.insert(n);
      }
    }
  }

 private:
  void find_ops() {
    const Modules modules(graph_);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const auto& node = graph_.nodes[n];
      if (node.phase != Phase::forward) continue;
      std::optional<size_t> best;
      for (size_t c = 0; c < constraints_.size(); ++c) {
        const auto& constraint = constraints_[c];
        if (constraint.op != node.op || !modules.is_within(node.scope, constraint.parent)) continue;
        const auto length = [&](size_t k) { return components(constraints_[k].parent).size(); };
        if (!best || length(c) > length(*best)) best = c;
      }
      if (!best) continue;
      ++constraints_[*best].matches;
      ops_[n] = *best;
      check(node, constraints_[*best]);
    }
  }

  static void check(const Node& node, const Constraint& constraint) {
    int operands = 0;
    node.each_operand([&](ValueId) { ++operands; });
    for (const auto& [operand, dim] : constraint.dims) {
      if (operand < operands) continue;
      fail(kMethod, "{}: inputs of {} are 0 to {}, but got {}", constraint.place, node.op,
           operands - 1, operand);
    }
  }

  bool allows(const Constraint& constraint, const shard::Sharding& sharding, size_t n) const {
    bool whole = true;
    const auto& operands = sharding.operands[n];
    for (size_t i = 0; i < operands.size(); ++i) {
      const auto& p = operands[i][axis_];
      whole = whole && p.is_replicate();
      const OperandDim cut{static_cast<int>(i), p.dim};
      const auto& dims = constraint.dims;
      if (p.is_shard() && std::find(dims.begin(), dims.end(), cut) != dims.end()) return true;
    }
    for (const auto& placements : sharding.results[n]) {
      whole = whole && (placements.empty() || placements[axis_].is_replicate());
    }
    return whole && constraint.replica;
  }

  // Pins the op's tensors to the first allowed cut that the op's rule also allows, or whole for
  // a replica.
  void pin(size_t n, const Constraint& constraint) {
    const auto& node = graph_.nodes[n];
    const shard::Call call(graph_, node);
    const auto& pattern = rules_.at(n).pattern;
    std::optional<shard::DimCut> cut;
    if (pattern && !constraint.replica) cut = allowed_cut(call, *pattern, constraint);
    if (!cut && !constraint.replica) {
      fail(kMethod, "{}: none of the dims that are allowed for {} in {} can be split over {} ranks",
           constraint.place, node.op, node.scope, plan_.mesh.axes[axis_].size);
    }
    int i = 0;
    node.each_operand(
        [&](ValueId v) { place(v, cut ? pattern->placed(*cut, false, i++) : std::nullopt); });
    for (int r = 0; r < call.result_count(); ++r) {
      if (!call.has_result(r)) continue;
      auto placed = cut ? pattern->placed(*cut, true, r) : std::nullopt;
      // A pinned result stays Partial: otherwise propagation could gather the operands, which costs
      // less than the sum over ranks.
      const bool sum = cut && pattern->dims[cut->dim].role == shard::Role::sum;
      if (!placed && sum) placed = Placement::partial();
      if (placed || !cut) place(node.outputs[r], placed);
    }
  }

  std::optional<shard::DimCut> allowed_cut(const shard::Call& call, const shard::Pattern& pattern,
                                           const Constraint& constraint) const {
    for (const auto& [operand, dim] : constraint.dims) {
      if (dim >= call.rank(operand) || pattern.operands[operand][dim] < 0) continue;
      const shard::DimCut cut{pattern.operands[operand][dim]};
      if (shard::may_shard(call, pattern, cut, {axis_}, plan_.mesh)) return cut;
    }
    return {};
  }

  void place(ValueId v, const std::optional<Placement>& wanted) {
    const auto& name = names_[v.index];
    const auto* input = graph_.values[v.index].producer < 0 ? graph_.find_input(name) : nullptr;
    // Parameters and buffers are placed on every axis.
    const bool is_stored = input && input->kind != graph::Input::Kind::data;
    const auto otherwise = is_stored ? Placement::replicate() : Placement::open();
    const auto [found, added] = plan_.placements.try_emplace(
        name, Placements(plan_.mesh.axes.size(), otherwise));
    found->second[axis_] = wanted.value_or(Placement::replicate());
  }

  plan::Plan& plan_;
  const Graph& graph_;
  std::vector<Constraint>& constraints_;
  const int axis_;
  const shard::MatchedRules rules_;
  const std::vector<std::string> names_;
  std::map<size_t, size_t> ops_;  // nodes with their constraints
  std::set<size_t> pinned_;
};

struct ConstraintsConfig {
  std::string axis = "tensor";
};

class PartitionConstraints : public MethodWith<ConstraintsConfig> {
 public:
  std::string_view name() const override { return kMethod; }
  std::string_view doc() const override {
    return "Restricts the dims of ops that may be split over an axis, and the ops that all its "
           "ranks may compute whole. An op whose sharding is not allowed is pinned: replicated "
           "where that is allowed, else split along the first dim of the list that can be.";
  }
  std::string_view items() const override {
    return "constraints: {name = op (`aten::mm`), parent_module = the end of a module's path, or "
           "of the types along it (numbers are left out), allowed_partition_dims = {\"INPUT,DIM\", "
           "...}, replica_allowed = boolean}; of several for an op the one with the longest "
           "parent_module counts";
  }

 protected:
  const FieldTable<ConstraintsConfig>& table() const override {
    static const FieldTable<ConstraintsConfig> table({{.name = "axis",
                                                       .member = &ConstraintsConfig::axis,
                                                       .doc = "the axis of the constraints"}});
    return table;
  }

  void edit(plan::Plan& plan, const ConstraintsConfig& given, const Config& config,
            const PlanRequest& request) const override {
    const auto& axis = given.axis;
    std::vector<Constraint> constraints;
    for (size_t i = 0; i < config.items.size(); ++i)
      constraints.push_back(parse(config.items[i], i));
    if (constraints.empty()) fail(kMethod, "it takes a list of constraints, but got none");
    const int at = plan.mesh.find(axis);
    if (at < 0 || plan.mesh.axes[at].size == 1) {
      plan.decisions.push_back(
          {kMethod, fmt::format("no op is split over axis {}, which has one rank", axis)});
      return;
    }
    const auto changed = Constrained(plan, *request.graph, constraints, at).run();
    plan.decisions.push_back(
        {kMethod, fmt::format("{} constraint{} on axis {}: the sharding of {} op{} changes",
                              constraints.size(), constraints.size() == 1 ? "" : "s", axis, changed,
                              changed == 1 ? "" : "s")});
    for (const auto& constraint : constraints) {
      if (constraint.matches > 0) continue;
      plan.decisions.push_back(
          {kMethod, fmt::format("left out: {}: no op {} is in {}, as the graph names them",
                                constraint.place, constraint.op, constraint.parent)});
    }
  }
};

}  // namespace

std::shared_ptr<const Method> partition_constraints() {
  return std::make_shared<PartitionConstraints>();
}

}  // namespace perigee::methods
