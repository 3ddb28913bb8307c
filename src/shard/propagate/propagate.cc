#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_map>

#include "base/fail.h"
#include "graph/ops.h"
#include "shard/partition.h"
#include "shard/propagate/content_key.h"
#include "shard/propagate/matched_rules.h"
#include "shard/propagate/node_sharding.h"
#include "shard/propagate/pins.h"
#include "shard/propagate/shard_replicated_work.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using graph::Output;
using graph::ValueId;
using mesh::Placement;
using mesh::Placements;

// The effect on each value of staying Partial on one axis.
struct Deferral {
  // True if it flows only through linear ops, to gradients of parameters replicated on the axis or
  // to the loss: staying Partial is free, since those are reduced once a step, in buckets.
  std::vector<bool> is_free;
  // Otherwise the cost of reducing later, in bytes: a nonlinear use reduces the value, a linear one
  // passes the reduction on to its result.
  std::vector<double> reduction_cost;
};

std::vector<bool> find_free(const Graph& graph, const MatchedRules& rules,
                            const std::vector<bool>& whole) {
  std::vector<bool> used(graph.values.size()), blocked(graph.values.size());
  for (size_t o = 0; o < graph.outputs.size(); ++o) {
    const auto& output = graph.outputs[o];
    used[output.value.index] = true;
    const bool waits = (output.kind == Output::Kind::gradient && whole[o]) ||
                       output.kind == Output::Kind::loss;
    if (!waits) blocked[output.value.index] = true;
  }
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const auto& node = graph.nodes[n];
    const auto& pattern = rules.at(n).pattern;
    bool results_free = true;
    for (auto v : node.outputs) {
      if (v.defined() && used[v.index] && blocked[v.index]) results_free = false;
    }
    int i = 0;
    node.each_operand([&](ValueId v) {
      const bool linear = pattern &&
                          std::any_of(
                              pattern->linear.begin(), pattern->linear.end(), [&](auto& group) {
                                return std::find(group.begin(), group.end(), i) != group.end();
                              });
      used[v.index] = true;
      if (!linear || !results_free) blocked[v.index] = true;
      ++i;
    });
  }
  std::vector<bool> is_free(graph.values.size());
  for (size_t v = 0; v < is_free.size(); ++v) is_free[v] = used[v] && !blocked[v];
  return is_free;
}

// `whole`: per output, whether it is a gradient whose parameter is replicated on the axis.
Deferral find_deferrals(const Graph& graph, const MatchedRules& rules,
                        const std::vector<bool>& whole) {
  Deferral deferral{find_free(graph, rules, whole), {}};
  const auto& is_free = deferral.is_free;
  auto& reduction_cost = deferral.reduction_cost;
  reduction_cost.assign(graph.values.size(), 0);
  for (const auto& output : graph.outputs) {
    const auto v = output.value.index;
    if (!is_free[v]) reduction_cost[v] += static_cast<double>(graph.values[v].type.bytes());
  }
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const auto& node = graph.nodes[n];
    const auto& pattern = rules.at(n).pattern;
    const bool passes = pattern && (pattern->any_reduce || graph::is_pointwise(node.op) ||
                                    node.op.starts_with("aten::sum"));
    double after_use = 0;
    for (auto v : node.outputs) {
      if (v.defined() && !is_free[v.index]) after_use += reduction_cost[v.index];
    }
    int i = 0;
    node.each_operand([&](ValueId v) {
      const bool linear = passes &&
                          std::any_of(
                              pattern->linear.begin(), pattern->linear.end(), [&](auto& group) {
                                return std::find(group.begin(), group.end(), i) != group.end();
                              });
      const auto bytes = static_cast<double>(graph.type(v).bytes());
      reduction_cost[v.index] += linear ? std::min(bytes, after_use) : bytes;
      ++i;
    });
  }
  return deferral;
}

// The first pass, over the nodes in order.
class Propagation {
 public:
  Propagation(const Graph& graph, const plan::Plan& plan, const MatchedRules& rules)
      : graph_(graph),
        plan_(plan),
        rules_(rules),
        redistributor_(plan.mesh, plan.pipeline.axis, plan.forbidden),
        forbidden_(forbidden_by(plan)) {
    pin();
  }

  // Pins every value whose placements on the axes would differ from `wanted`; returns those pins.
  std::map<std::string, Placements> find_pins(const std::vector<Placements>& wanted,
                                              const std::vector<int>& axes) {
    wanted_ = &wanted;
    wanted_axes_ = axes;
    names_ = graph::value_names(graph_);
    used_.resize(graph_.values.size());
    for (const auto& node : graph_.nodes) {
      node.each_operand([&](ValueId v) { used_[v.index] = true; });
    }
    run();
    return std::move(added_);
  }

  Sharding run() {
    const size_t axes = plan_.mesh.axes.size();
    sharding_.values.assign(graph_.values.size(), Placements(axes));
    sharding_.operands.resize(graph_.nodes.size());
    sharding_.results.resize(graph_.nodes.size());
    placement_of_.assign(graph_.values.size(), number_of(Placements(axes)));
    versions_.resize(graph_.values.size());
    is_parameter_.resize(graph_.values.size());
    for (const auto& input : graph_.inputs) {
      is_parameter_[input.value.index] = input.kind == graph::Input::Kind::parameter;
    }
    const auto placed = place_inputs(graph_, plan_);
    for (size_t i = 0; i < placed.size(); ++i) set(graph_.inputs[i].value, placed[i]);
    find_targets();
    find_deferrals();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) node(n);
    return std::move(sharding_);
  }

 private:
  void pin() {
    pins_.assign(graph_.values.size(), nullptr);
    pin_numbers_.assign(graph_.values.size(), -1);
    if (plan_.placements.empty()) return;
    const auto names = graph::value_names(graph_);
    for (size_t v = 0; v < names.size(); ++v) {
      const auto found = plan_.placements.find(names[v]);
      if (found == plan_.placements.end()) continue;
      pins_[v] = &found->second;
      pin_numbers_[v] = number_of(found->second);
    }
  }

  // A gradient's target is its parameter's placements, also before the cast to the
  // parameter's type.
  void find_targets() {
    targets_.assign(graph_.values.size(), -1);
    for (const auto& output : graph_.outputs) {
      const auto* owner = output.kind == Output::Kind::gradient ? graph_.find_input(output.name)
                                                                : nullptr;
      if (owner) targets_[output.value.index] = owner->value.index;
    }
    std::vector<int> uses(graph_.values.size());
    for (const auto& node : graph_.nodes) {
      node.each_operand([&](ValueId v) { ++uses[v.index]; });
    }
    for (const auto& node : graph_.nodes) {
      if (node.op != "perigee::cast") continue;
      const auto from = node.get<ValueId>("self", {}), to = node.outputs[0];
      if (targets_[to.index] >= 0 && uses[from.index] == 1)
        targets_[from.index] = targets_[to.index];
    }
  }

  // Axes on which the same parameters are replicated share one entry.
  void find_deferrals() {
    std::map<std::vector<bool>, size_t> known;
    for (size_t a = 0; a < plan_.mesh.axes.size(); ++a) {
      std::vector<bool> whole(graph_.outputs.size());
      for (size_t o = 0; o < whole.size(); ++o) {
        const auto owner = targets_[graph_.outputs[o].value.index];
        whole[o] = owner < 0 || sharding_.values[owner][a].is_replicate();
      }
      const auto [at, added] = known.emplace(whole, deferrals_.size());
      if (added) deferrals_.push_back(shard::find_deferrals(graph_, rules_, whole));
      deferral_of_.push_back(at->second);
    }
  }

  // Bits of the axes on which staying Partial is free.
  uint64_t free_on(ValueId v) const {
    uint64_t bits = 0;
    for (size_t a = 0; a < deferral_of_.size(); ++a) {
      if (deferrals_[deferral_of_[a]].is_free[v.index]) bits |= uint64_t{1} << a;
    }
    return bits;
  }

  int number_of(const Placements& placements) {
    key_.clear();
    key_.put(placements);
    return placements_.of(key_.bytes()).first;
  }

  void set(ValueId v, const Placements& placements) {
    sharding_.values[v.index] = placements;
    placement_of_[v.index] = number_of(placements);
  }

  void node(size_t n) {
    const auto& node = graph_.nodes[n];
    const auto* choice = &choice_of(n);
    if (wanted_ && pin_differing(node, *choice)) choice = &choice_of(n);
    sharding_.operands[n] = choice->operands;
    sharding_.results[n] = choice->results;
    size_t i = 0;
    node.each_operand([&](ValueId v) { remember(v, sharding_.operands[n][i++], node.phase); });
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      const auto v = node.outputs[r];
      if (v.defined()) set(v, placements_of(v, sharding_.results[n][r]));
    }
  }

  // Returns the placements of a value, given those that its producer gives it.
  Placements placements_of(ValueId v, const Placements& result) const {
    return pins_[v.index] ? resolve_pin(*pins_[v.index], result) : reduced_if_shared(v, result);
  }

  // Pins the results that are read, that have no pin on the axes, and whose placements differ from
  // the wanted ones. Returns whether there are any.
  bool pin_differing(const graph::Node& node, const NodeSharding& choice) {
    bool any = false;
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      const auto v = node.outputs[r];
      if (!v.defined() || !used_[v.index]) continue;
      const auto* pin = pins_[v.index];
      const auto actual = placements_of(v, choice.results[r]);
      auto placements = pin ? *pin : Placements(plan_.mesh.axes.size(), Placement::open());
      bool differs = false;
      for (size_t k = 0; k < wanted_axes_.size(); ++k) {
        const int a = wanted_axes_[k];
        const auto& wanted = (*wanted_)[v.index][k];
        if (wanted.is_open() || !placements[a].is_open()) continue;
        differs = differs || actual[a] != wanted;
        placements[a] = wanted;
      }
      if (!differs) continue;
      auto& added = added_[names_[v.index]] = std::move(placements);
      pins_[v.index] = &added;
      pin_numbers_[v.index] = number_of(added);
      any = true;
    }
    return any;
  }

  const NodeSharding& choice_of(size_t n) {
    const auto& node = graph_.nodes[n];
    key_.clear();
    key_.put(rules_.number(n));
    std::vector<int64_t> numbers;
    node.each_operand([&](ValueId v) {
      numbers.push_back(placement_of_[v.index]);
      for (const auto& version : versions_[v.index]) {
        if (version.phase == node.phase || !is_parameter_[v.index]) {
          numbers.push_back(version.number);
        }
      }
      numbers.push_back(-1);
    });
    for (auto number : numbers) key_.put(number);
    for (auto v : node.outputs) {
      key_.put(v.defined() ? static_cast<int64_t>(free_on(v)) : 0);
      key_.put(v.defined() && targets_[v.index] >= 0 ? placement_of_[targets_[v.index]] : -1);
      key_.put(v.defined() ? pin_numbers_[v.index] : -1);
    }
    const auto [at, added] = choices_.try_emplace(key_.bytes());
    if (added) at->second = decide(n);
    return at->second;
  }

  // Reduces a Partial result at once if several users would each reduce it.
  Placements reduced_if_shared(ValueId v, Placements placements) const {
    for (size_t a = 0; a < placements.size(); ++a) {
      if (!placements[a].is_partial()) continue;
      const auto& deferral = deferrals_[deferral_of_[a]];
      if (!deferral.is_free[v.index] &&
          deferral.reduction_cost[v.index] > 1.01 * static_cast<double>(graph_.type(v).bytes())) {
        placements[a] = Placement::replicate();
      }
    }
    return placements;
  }

  // Records a redistributed version of a value: the partitioner reuses it for later users, except
  // that gathered parameters are re-gathered in the backward pass.
  void remember(ValueId v, const Placements& placements, graph::Phase phase) {
    const int number = number_of(placements);
    if (number == placement_of_[v.index]) return;
    auto& versions = versions_[v.index];
    for (const auto& version : versions) {
      if (version.number == number && version.phase == phase) return;
    }
    versions.push_back({placements, number, phase});
  }

  NodeSharding decide(size_t n) {
    const auto& node = graph_.nodes[n];
    const Call call(graph_, node);
    NodeContext context;
    bool replicated_already = true;
    node.each_operand([&](ValueId v) {
      context.operands.push_back(sharding_.values[v.index]);
      auto& versions = context.versions.emplace_back();
      for (const auto& version : versions_[v.index]) {
        if (version.phase == node.phase || !is_parameter_[v.index]) {
          versions.push_back(&version.placements);
        }
      }
      for (const auto& p : context.operands.back()) replicated_already &= p.is_replicate();
    });
    for (auto v : node.outputs) {
      context.free_on.push_back(v.defined() ? free_on(v) : 0);
      context.pins.push_back(v.defined() ? pins_[v.index] : nullptr);
      const int owner = v.defined() ? targets_[v.index] : -1;
      context.targets.push_back(owner >= 0 ? &sharding_.values[owner] : nullptr);
    }
    const auto& pattern = rules_.at(n).pattern;
    context.one_axis = forbidden_.one_axis;
    if (graph::is_product(node.op)) context.share_over = forbidden_.share_over;
    if (pattern || context.share_over != 0) {
      NodeSharding choice{.cost = std::numeric_limits<double>::infinity()};
      if (pattern) choice = cheapest_sharding(call, *pattern, context, plan_.mesh, redistributor_);
      if (!std::isfinite(choice.cost)) {
        fail("shard",
             "{} in scope \"{}\" has no sharding for the placements of its operands and pins{}",
             node.op, node.scope,
             plan_.forbidden.empty()
                 ? std::string()
                 : fmt::format(
                       " where {} is forbidden: allow it, or change the placements of its operands",
                       fmt::join(plan_.forbidden, ", ")));
      }
      return choice;
    }
    auto& replicated_ops = sharding_.replicated_ops;
    if (!replicated_already &&
        std::find(replicated_ops.begin(), replicated_ops.end(), node.op) == replicated_ops.end()) {
      replicated_ops.push_back(node.op);
    }
    return replicated_sharding(call, plan_.mesh.axes.size());
  }

  const Graph& graph_;
  const plan::Plan& plan_;
  const MatchedRules& rules_;
  Redistributor redistributor_;
  const Forbidden forbidden_;
  Sharding sharding_;
  std::vector<const Placements*> pins_;              // per value
  std::vector<int> pin_numbers_;                     // per value: equal for equal pins, -1 for none
  const std::vector<Placements>* wanted_ = nullptr;  // per value, on these axes
  std::vector<int> wanted_axes_;
  std::vector<std::string> names_;  // if placements are wanted
  std::vector<bool> used_;          // if placements are wanted; per value: whether a node reads it
  std::map<std::string, Placements> added_;  // pins, by name
  struct Version {
    Placements placements;
    int number;
    graph::Phase phase;
  };

  std::vector<Deferral> deferrals_;             // of distinct axes
  std::vector<size_t> deferral_of_;             // per axis
  std::vector<std::vector<Version>> versions_;  // per value: other placements in which it exists
  std::vector<bool> is_parameter_;              // per value
  std::vector<int> targets_;  // per value: the parameter whose gradient it is, or -1
  Numbering placements_;
  std::vector<int> placement_of_;  // per value
  std::unordered_map<std::string, NodeSharding> choices_;
  ContentKey key_;
};

}  // namespace

Sharding propagate(const Graph& graph, const plan::Plan& plan) {
  const MatchedRules rules(graph, plan);
  auto sharding = Propagation(graph, plan, rules).run();
  shard_replicated_work(graph, plan, rules, sharding);
  return sharding;
}

std::map<std::string, Placements> find_pins(const Graph& graph, const plan::Plan& plan,
                                            const std::vector<int>& axes,
                                            const std::vector<Placements>& wanted) {
  const MatchedRules rules(graph, plan);
  return Propagation(graph, plan, rules).find_pins(wanted, axes);
}

}  // namespace perigee::shard
