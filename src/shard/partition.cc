#include "shard/partition.h"

#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <map>

#include "base/fail.h"
#include "shard/propagate/matched_rules.h"
#include "shard/propagate/node_sharding.h"
#include "shard/redistribute.h"
#include "shard/rules/rule_lowering.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using graph::Input;
using graph::Output;
using graph::ValueId;
using mesh::Placement;
using mesh::Placements;

// A global value on this rank, with one of the placements in which it exists.
struct Version {
  Placements placements;
  ValueId local;
  graph::Phase phase;
  bool original = false;
  bool gathered = false;  // gathered from pieces that also exist
  bool piece = false;     // a piece kept for the backward pass of a value pinned whole
};

// Whether the path consists of all-gathers only.
bool gathers(const RedistributePath& path) {
  bool any = false;
  for (const auto& step : path.steps) {
    any = any || step.kind == RedistributeStep::Kind::all_gather;
    if (step.kind != RedistributeStep::Kind::all_gather &&
        step.kind != RedistributeStep::Kind::zigzag &&
        step.kind != RedistributeStep::Kind::restore) {
      return false;
    }
  }
  return any;
}

class Partition {
 public:
  Partition(const Graph& graph, const Sharding& sharding, const plan::Plan& plan, int64_t rank)
      : graph_(graph),
        sharding_(sharding),
        plan_(plan),
        rank_(rank),
        rules_(graph, plan),
        redistributor_(plan.mesh, plan.pipeline.axis, plan.forbidden),
        versions_(graph.values.size()),
        is_parameter_(graph.values.size()),
        needed_(graph.values.size()) {}

  LocalGraph run() {
    find_cuts();
    find_needed();
    local_.graph.scopes = graph_.scopes;
    for (const auto& input : graph_.inputs) add_input(input);
    local_.graph.outputs.resize(graph_.outputs.size());
    local_.outputs.resize(graph_.outputs.size());
    // Outputs by producer, inputs first: an output's remaining redistributes follow its producer,
    // because a pipeline is cut by the order of nodes.
    std::vector<std::vector<size_t>> outputs(graph_.nodes.size());
    for (size_t o = 0; o < graph_.outputs.size(); ++o) {
      const auto producer = graph_.values[graph_.outputs[o].value.index].producer;
      if (producer >= 0) {
        outputs[producer].push_back(o);
      } else {
        add_output(o, graph::Node());
      }
    }
    std::vector<graph::NodeId> local_nodes(graph_.nodes.size(), -1);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const size_t first = local_.graph.nodes.size();
      local_nodes[n] = node(n);
      for (size_t o : outputs[n]) add_output(o, graph_.nodes[n]);
      const auto forward = graph_.nodes[n].forward_node;
      for (size_t k = first; forward >= 0 && k < local_.graph.nodes.size(); ++k) {
        local_.graph.nodes[k].forward_node = local_nodes[forward];
      }
    }
    return std::move(local_);
  }

 private:
  void add_input(const Input& input) {
    const auto& wanted = sharding_.values[input.value.index];
    auto placements = wanted;
    for (const auto& zigzag : wanted) {
      for (auto& p : placements) {
        // The dim is loaded whole and cut here.
        if (zigzag.zigzag && p.is_shard() && p.dim == zigzag.dim) p = Placement::replicate();
      }
    }
    auto type = graph_.type(input.value);
    type.shape = mesh::local_shape(type.shape, placements, plan_.mesh, rank_);
    const auto local = local_.graph.add_input(input.kind, input.name, std::move(type));
    auto& added = local_.graph.inputs.back();
    added.trainable = input.trainable;
    added.batched = input.batched;
    added.data = input.data;
    local_.inputs.push_back(placements);
    is_parameter_[input.value.index] = input.kind == Input::Kind::parameter;
    versions_[input.value.index].push_back({placements, local, graph::Phase::forward, true});
    if (placements == wanted) return;
    const auto cut = redistributed(input.value, wanted, graph::Node());
    versions_[input.value.index] = {{wanted, cut, graph::Phase::forward, true}};
  }

  // Returns the value with the placements `wanted`, redistributed from the cheapest version. Values
  // gathered in the forward pass are re-gathered in the backward pass: only their pieces are saved
  // (Korthikanti et al. 2022).
  ValueId redistributed(ValueId v, const Placements& wanted, const graph::Node& consumer) {
    auto& versions = versions_[v.index];
    const RedistributePath* best = nullptr;
    const Version* from = nullptr;
    for (const auto& version : versions) {
      if (version.piece && version.phase == consumer.phase && versions.size() > 1) continue;
      const bool kept = version.original || version.phase == consumer.phase ||
                        !(is_parameter_[v.index] || version.gathered);
      if (!kept) continue;
      if (version.placements == wanted) return version.local;
      const auto& path = redistributor_.path(graph_.type(v), version.placements, wanted);
      if (best && path.cost >= best->cost) continue;
      best = &path;
      from = &version;
    }
    if (!std::isfinite(best->cost)) {
      fail("shard",
           "a value must be redistributed from {} to {} for {} in scope \"{}\", which requires a "
           "step that the plan forbids ({}): allow it, or change the placements",
           mesh::to_string(from->placements), mesh::to_string(wanted),
           consumer.op.empty() ? "an output of the step" : consumer.op, consumer.scope,
           fmt::join(plan_.forbidden, ", "));
    }
    const auto local = emit_path(local_.graph, from->local, *best, graph_.type(v), wanted,
                                 plan_.mesh, rank_, consumer);
    versions.push_back({wanted, local, consumer.phase, false,
                        graph::is_floating(graph_.type(v).dtype) && gathers(*best)});
    return local;
  }

  // Returns the local node of the first needed result, or the last local node if that result
  // existed already. Later nodes may redistribute the result.
  graph::NodeId node(size_t n) {
    const auto& node = graph_.nodes[n];
    const auto first = static_cast<graph::NodeId>(local_.graph.nodes.size());
    graph::NodeId maker = -1;
    const Call call(graph_, node);
    std::vector<ValueId> operands;
    int i = 0;
    node.each_operand(
        [&](ValueId v) { operands.push_back(redistributed(v, sharding_.operands[n][i++], node)); });
    const auto& rule = rules_.at(n);
    static const Pattern none;
    RuleLowering lowering{call,
                          rule.pattern ? *rule.pattern : none,
                          plan_.mesh,
                          rank_,
                          sharding_.operands[n],
                          sharding_.results[n],
                          std::move(operands),
                          local_.graph,
                          shared_};
    const bool lowered = rule.lower && !runs_replicated(n);
    const auto results = lowered ? rule.lower(lowering) : lowering.emit(lowering.local_args());
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      const auto v = node.outputs[r];
      if (!v.defined()) continue;
      const auto& placements = sharding_.results[n][r];
      if (maker < 0 && needed_[v.index]) maker = local_.graph.values[results[r].index].producer;
      versions_[v.index].push_back({placements, results[r], node.phase, true});
      if (sharding_.values[v.index] != placements) {
        // Pinned to other placements: only that version is used from here on, unless it can
        // be re-gathered.
        const auto moved = redistributed(v, sharding_.values[v.index], node);
        auto& versions = versions_[v.index];
        if (versions.back().gathered && node.phase == graph::Phase::forward) {
          versions.front().piece = true;
          continue;
        }
        versions_[v.index] = {{sharding_.values[v.index], moved, node.phase, true}};
      }
    }
    return maker >= first ? maker : static_cast<graph::NodeId>(local_.graph.nodes.size()) - 1;
  }

  // Marks the values that an output depends on.
  void find_needed() {
    for (const auto& output : graph_.outputs) {
      if (output.value.defined()) needed_[output.value.index] = true;
    }
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const auto& node = graph_.nodes[n];
      bool needed = node.outputs.empty();
      for (auto v : node.outputs) needed = needed || (v.defined() && needed_[v.index]);
      if (needed) node.each_operand([&](ValueId v) { needed_[v.index] = true; });
    }
  }

  bool runs_replicated(size_t n) const {
    for (const auto* tensors : {&sharding_.operands[n], &sharding_.results[n]}) {
      for (const auto& placements : *tensors) {
        for (const auto& p : placements) {
          if (!p.is_replicate()) return false;
        }
      }
    }
    return true;
  }

  // Finds the axes of several ranks that shard each parameter's unit: its gradient is reduced there
  // in the unit's buckets, and so must be a sum.
  void find_cuts() {
    for (const auto& unit : plan_.units) {
      std::vector<size_t> axes;
      for (const auto& name : unit.axes) {
        const int axis = plan_.mesh.find(name);
        if (axis >= 0 && plan_.mesh.axes[axis].size > 1) axes.push_back(static_cast<size_t>(axis));
      }
      for (const auto& parameter : unit.parameters) cuts_[parameter] = axes;
    }
  }

  void add_output(size_t o, const graph::Node& maker) {
    const auto& output = graph_.outputs[o];
    const auto v = output.value;
    auto wanted = sharding_.values[v.index];
    const auto* owner = output.kind == Output::Kind::gradient || output.kind == Output::Kind::buffer
                            ? graph_.find_input(output.name)
                            : nullptr;
    for (size_t a = 0; a < wanted.size(); ++a) {
      if (output.kind == Output::Kind::result) {
        const bool in_pieces = wanted[a].run != 0 || wanted[a].zigzag;
        if (wanted[a].is_partial() || in_pieces) wanted[a] = Placement::replicate();
      } else if (owner) {
        const auto& own = sharding_.values[owner->value.index][a];
        const bool reduced_later = output.kind == Output::Kind::gradient &&
                                   wanted[a] == Placement::partial() && own.is_replicate();
        if (!reduced_later) wanted[a] = own;
      } else if (wanted[a] != Placement::partial()) {
        wanted[a] = Placement::replicate();  // the loss
      }
    }
    if (output.kind == Output::Kind::gradient) {
      const auto cut = cuts_.find(output.name);
      for (size_t a : cut == cuts_.end() ? std::vector<size_t>{} : cut->second) {
        wanted[a] = Placement::partial();
      }
    }
    local_.graph.outputs[o] = {output.kind, output.name, redistributed(v, wanted, maker)};
    local_.outputs[o] = wanted;
  }

  const Graph& graph_;
  const Sharding& sharding_;
  const plan::Plan& plan_;
  const int64_t rank_;
  const MatchedRules rules_;
  Redistributor redistributor_;
  LocalGraph local_;
  std::map<std::string, ValueId> shared_;
  std::vector<std::vector<Version>> versions_;       // per global value
  std::vector<bool> is_parameter_, needed_;          // per global value
  std::map<std::string, std::vector<size_t>> cuts_;  // by parameter: axes
};

}  // namespace

LocalGraph partition(const Graph& graph, const Sharding& sharding, const plan::Plan& plan,
                     int64_t rank) {
  mesh::coordinates(plan.mesh, rank);  // throws for a rank that the mesh does not use
  return Partition(graph, sharding, plan, rank).run();
}

}  // namespace perigee::shard
