#include "shard/solver/sharding_options.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "graph/ops.h"
#include "shard/propagate/content_key.h"
#include "shard/redistribute.h"
#include "shard/rules/rule_lowering.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using graph::ValueId;
using mesh::Placement;
using mesh::Placements;

// Returns for each node whether a parameter flows into it.
std::vector<bool> find_dependent(const Graph& graph) {
  std::vector<bool> values(graph.values.size()), nodes;
  for (const auto& input : graph.inputs) {
    values[input.value.index] = input.kind == graph::Input::Kind::parameter;
  }
  for (const auto& node : graph.nodes) {
    bool depends = false;
    node.each_operand([&](ValueId v) { depends = depends || values[v.index]; });
    for (auto v : node.outputs) {
      if (v.defined()) values[v.index] = depends;
    }
    nodes.push_back(depends);
  }
  return nodes;
}

bool is_whole(const NodeSharding& choice) {
  for (const auto* tensors : {&choice.operands, &choice.results}) {
    for (const auto& placements : *tensors) {
      for (const auto& p : placements) {
        if (!p.is_replicate()) return false;
      }
    }
  }
  return true;
}

// The cost of the nodes that a rule's lowering emits, on the rank that has the most work; nothing
// if the lowering throws.
std::optional<double> work_of_lowering(const Call& call, const MatchedRule& rule,
                                       const NodeSharding& choice, const mesh::Mesh& mesh,
                                       const WorkPrices& prices) {
  Graph local;
  std::vector<ValueId> operands;
  for (int i = 0; i < call.operand_count(); ++i) {
    auto type = call.operand_type(i);
    type.shape = mesh::local_shape(type.shape, choice.operands[i], mesh, 0);
    operands.push_back(
        local.add_input(graph::Input::Kind::data, std::to_string(i), std::move(type)));
  }
  std::map<std::string, ValueId> shared;
  RuleLowering lowering{call,           *rule.pattern,       mesh,  0,     choice.operands,
                        choice.results, std::move(operands), local, shared};
  try {
    rule.lower(lowering);
  } catch (const Error&) {
    return {};
  }
  double work = 0;
  for (const auto& node : local.nodes) {
    if (!graph::is_collective(node.op)) {
      const Call own(local, node);
      NodeSharding here = replicated_sharding(own, mesh.axes.size());
      work += work_cost(own, here, mesh, prices);
      continue;
    }
    double ranks = 1, bytes = 0;
    for (const auto& axis : mesh::AxisSet::parse(node.get<std::string>("axis", ""))) {
      ranks *= static_cast<double>(mesh.size_of(axis));
    }
    node.each_operand([&](ValueId v) { bytes += static_cast<double>(local.type(v).bytes()); });
    const double share = (ranks - 1) / ranks;
    work += Redistributor::kLatency + bytes * (node.op == "comm::all_reduce"   ? 2 * share
                                               : node.op == "comm::all_gather" ? ranks - 1
                                                                               : share);
  }
  return work;
}

// A node's option on one axis.
struct Option {
  enum class Kind : uint8_t { whole, cut, linear };
  Kind kind = Kind::whole;
  DimCut cut = {};
  int group = 0;  // index of Pattern::linear
  bool operator==(const Option&) const = default;
};

// Makes the options of one node.
class OptionMaker {
 public:
  OptionMaker(const Call& call, const Pattern& pattern, const NodeSharding& base,
              const mesh::Mesh& mesh, const std::vector<int>& axes)
      : call_(call), pattern_(pattern), base_(base), mesh_(mesh), axes_(axes) {}

  NodeSharding whole() const {
    auto choice = base_;
    for (auto* tensors : {&choice.operands, &choice.results}) {
      for (auto& placements : *tensors) {
        for (int a : axes_) {
          if (!placements.empty()) placements[a] = Placement::replicate();
        }
      }
    }
    return choice;
  }

  // `picked`: per axis.
  std::optional<NodeSharding> make(const std::vector<Option>& picked) const {
    auto choice = whole();
    for (size_t k = 0; k < axes_.size(); ++k) {
      const auto& option = picked[k];
      if (option.kind == Option::Kind::linear) {
        // The ranks hold addends of a sum.
        for (int i : pattern_.linear[option.group]) {
          choice.operands[i][axes_[k]] = Placement::partial();
        }
        for (auto& result : choice.results) result[axes_[k]] = Placement::partial();
      }
      if (option.kind != Option::Kind::cut) continue;
      const auto axes = axes_with_cut(picked, k);
      if (!carries(option.cut) || !may_shard(call_, pattern_, option.cut, axes, mesh_)) return {};
      apply_cut(choice, pattern_, option.cut, axes_[k]);
    }
    return legal(std::move(choice));
  }

  // Returns the sharding with this cut on one of the axes, replicated on the others.
  std::optional<NodeSharding> cut(DimCut cut, size_t k) const {
    std::vector<Option> picked(axes_.size());
    picked[k] = {.kind = Option::Kind::cut, .cut = cut};
    return make(picked);
  }

 private:
  // Whether an operand, or every result, has the dim; otherwise nothing would be Partial.
  bool carries(DimCut cut) const {
    for (int i = 0; i < call_.operand_count(); ++i) {
      if (pattern_.placed(cut, false, i)) return true;
    }
    for (int r = 0; r < call_.result_count(); ++r) {
      if (call_.has_result(r) && !pattern_.placed(cut, true, r)) return false;
    }
    return true;
  }

  // The axes with this cut of the dim: those of the base and the picked ones.
  std::vector<int> axes_with_cut(const std::vector<Option>& picked, size_t k) const {
    const auto& cut = picked[k].cut;
    std::vector<int> axes;
    for (int b = 0; b < static_cast<int>(mesh_.axes.size()); ++b) {
      const auto own = std::find(axes_.begin(), axes_.end(), b);
      bool here = own != axes_.end() && picked[own - axes_.begin()] == picked[k];
      for (int i = 0; i < call_.operand_count() && own == axes_.end(); ++i) {
        const auto p = pattern_.placed(cut, false, i);
        here = here || (p && base_.operands[i][b] == *p);
      }
      for (int r = 0; r < call_.result_count() && own == axes_.end(); ++r) {
        const auto p = call_.has_result(r) ? pattern_.placed(cut, true, r) : std::nullopt;
        here = here || (p && base_.results[r][b] == *p);
      }
      if (here) axes.push_back(b);
    }
    return axes;
  }

  std::optional<NodeSharding> legal(NodeSharding choice) const {
    for (const auto* tensors : {&choice.operands, &choice.results}) {
      for (const auto& placements : *tensors) {
        if (mixes_reductions(placements)) return {};
      }
    }
    if (!runs_divide(call_, choice, mesh_)) return {};
    return choice;
  }

  const Call& call_;
  const Pattern& pattern_;
  const NodeSharding& base_;
  const mesh::Mesh& mesh_;
  const std::vector<int>& axes_;
};

class OptionFinder {
 public:
  OptionFinder(const Graph& graph, const plan::Plan& plan, const MatchedRules& rules,
               const Sharding& base, const std::vector<int>& axes, const WorkPrices& prices,
               const std::vector<bool>& depends)
      : graph_(graph),
        plan_(plan),
        rules_(rules),
        base_(base),
        axes_(axes),
        prices_(prices),
        depends_(depends),
        forbidden_(forbidden_by(plan)),
        users_(graph.values.size()),
        extra_(graph.nodes.size(), std::vector<std::vector<DimCut>>(axes.size())) {}

  void run(std::vector<std::vector<ShardingOption>>& lists, std::vector<int>& list_of) {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      int i = 0;
      graph_.nodes[n].each_operand([&](ValueId v) { users_[v.index].push_back({n, false, i++}); });
      for (size_t r = 0; r < graph_.nodes[n].outputs.size(); ++r) {
        const auto v = graph_.nodes[n].outputs[r];
        if (v.defined()) users_[v.index].push_back({n, true, static_cast<int>(r)});
      }
    }
    for (size_t k = 0; k < axes_.size(); ++k) {
      if (plan_.mesh.axes[axes_[k]].size > 1) find_runs(k);
    }
    Numbering contents;
    std::map<std::string, int> known;  // by rule, base and extra cuts
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      auto key = key_of(n);
      key.put(int{depends_[n]});
      for (auto& cuts : extra_[n]) {
        std::sort(cuts.begin(), cuts.end(), [](const DimCut& a, const DimCut& b) {
          return std::pair(a.dim, a.run) < std::pair(b.dim, b.run);
        });
        for (const auto& cut : cuts) {
          key.put(cut.dim);
          key.put(cut.run);
        }
        key.put(-1);
      }
      const auto [at, added] = known.try_emplace(key.bytes(), 0);
      if (added) {
        auto list = list_options(n);
        // Nodes that differ only in attributes without effect here (keys of random numbers)
        // share options.
        std::string all;
        for (const auto& node_option : list) all += content(node_option.sharding);
        const auto [number, fresh] = contents.of(all);
        if (fresh) lists.push_back(std::move(list));
        at->second = number;
      }
      list_of.push_back(at->second);
    }
  }

 private:
  struct Place {
    size_t node;
    bool of_result;
    int tensor;
  };

  NodeSharding base_of(size_t n) const { return {base_.operands[n], base_.results[n]}; }

  ContentKey key_of(size_t n) const {
    ContentKey key;
    key.put(rules_.number(n));
    for (const auto* tensors : {&base_.operands[n], &base_.results[n]}) {
      for (const auto& placements : *tensors) key.put(placements);
    }
    return key;
  }

  static std::string content(const NodeSharding& choice) {
    ContentKey key;
    key.put(std::bit_cast<int64_t>(choice.cost));
    for (const auto* tensors : {&choice.operands, &choice.results}) {
      key.put(static_cast<int64_t>(tensors->size()));
      for (const auto& placements : *tensors) key.put(placements);
    }
    return key.bytes();
  }

  // The options of a node on each axis; replicated comes first.
  std::vector<std::vector<Option>> options_of(size_t n, const Pattern& pattern) const {
    std::vector<std::vector<Option>> options(axes_.size(), {Option()});
    for (size_t k = 0; k < axes_.size() && depends_[n]; ++k) {
      for (int d = 0; d < static_cast<int>(pattern.dims.size()); ++d) {
        options[k].push_back({.kind = Option::Kind::cut, .cut = DimCut{d}});
      }
      for (const auto& cut : extra_[n][k]) {
        options[k].push_back({.kind = Option::Kind::cut, .cut = cut});
      }
      for (size_t g = 0; g < pattern.linear.size(); ++g) {
        options[k].push_back({.kind = Option::Kind::linear, .group = static_cast<int>(g)});
      }
    }
    return options;
  }

  bool allows(const Call& call, const NodeSharding& choice) const {
    bool shares = forbidden_.share_over == 0 || !graph::is_product(call.node().op);
    for (const auto* tensors : {&choice.operands, &choice.results}) {
      for (const auto& placements : *tensors) {
        int cuts = 0;
        for (size_t a = 0; a < placements.size(); ++a) {
          cuts += placements[a].is_shard() && plan_.mesh.axes[a].size > 1;
          shares = shares ||
                   ((forbidden_.share_over >> a & 1) != 0 && !placements[a].is_replicate());
        }
        if (cuts > 1 && forbidden_.one_axis) return false;
      }
    }
    return shares;
  }

  std::vector<ShardingOption> list_options(size_t n) const {
    const Call call(graph_, graph_.nodes[n]);
    const auto& rule = rules_.at(n);
    static const Pattern none;
    const auto& pattern = rule.pattern ? *rule.pattern : none;
    const auto base = base_of(n);
    const OptionMaker maker(call, pattern, base, plan_.mesh, axes_);
    const auto options = options_of(n, pattern);
    std::vector<ShardingOption> list, forbidden;
    std::set<std::string> known;
    std::vector<size_t> at(axes_.size(), 0);
    std::vector<Option> picked(axes_.size());
    for (size_t k = 0; k < axes_.size();) {
      for (size_t j = 0; j < axes_.size(); ++j) picked[j] = options[j][at[j]];
      for (k = 0; k < axes_.size() && ++at[k] == options[k].size(); ++k) at[k] = 0;
      auto choice = maker.make(picked);
      if (!choice || !known.insert(content(*choice)).second) continue;
      choice->cost = work_cost(call, *choice, plan_.mesh, prices_);
      if (rule.lower && !is_whole(*choice)) {
        const auto work = work_of_lowering(call, rule, *choice, plan_.mesh, prices_);
        if (!work) continue;
        choice->cost = *work;
      }
      auto& where = allows(call, *choice) ? list : forbidden;
      where.push_back({std::move(*choice)});
    }
    // If every option is forbidden, propagation reports the error.
    return list.empty() ? forbidden : list;
  }

  // Finds cuts in runs: from views that merge dims they propagate to neighbours that support them.
  void find_runs(size_t k) {
    seen_.clear();
    std::map<std::string, std::vector<NodeSharding>> begun;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const auto& pattern = rules_.at(n).pattern;
      if (!pattern || pattern->inner.empty()) continue;
      const auto [at, added] = begun.try_emplace(key_of(n).bytes());
      if (added) {
        const Call call(graph_, graph_.nodes[n]);
        const auto base = base_of(n);
        const OptionMaker maker(call, *pattern, base, plan_.mesh, axes_);
        for (const auto& inner : pattern->inner) {
          if (auto choice = maker.cut(DimCut{inner.dim}, k)) {
            at->second.push_back(std::move(*choice));
          }
        }
      }
      for (const auto& choice : at->second) spread(n, choice, k);
    }
    while (!open_.empty()) {
      const auto [v, run] = open_.back();
      open_.pop_back();
      for (const auto& place : users_[v]) follow(place, run, k);
    }
  }

  void follow(const Place& place, const Placement& run, size_t k) {
    const auto& pattern = rules_.at(place.node).pattern;
    if (!pattern) return;
    const auto cut = pattern->cut_of(run, place.of_result, place.tensor);
    auto& extra = extra_[place.node][k];
    if (!cut || cut->run == 0 || std::find(extra.begin(), extra.end(), *cut) != extra.end()) return;
    const Call call(graph_, graph_.nodes[place.node]);
    const auto base = base_of(place.node);
    const auto choice = OptionMaker(call, *pattern, base, plan_.mesh, axes_).cut(*cut, k);
    if (!choice) return;
    extra.push_back(*cut);
    spread(place.node, *choice, k);
  }

  // Queues the values that this sharding cuts in runs, for their other readers and producers.
  void spread(size_t n, const NodeSharding& choice, size_t k) {
    const int axis = axes_[k];
    const auto offer = [&](ValueId v, const Placement& p) {
      if (p.run == 0 || !seen_.emplace(v.index, p.dim, p.run).second) return;
      open_.emplace_back(v.index, p);
    };
    size_t i = 0;
    graph_.nodes[n].each_operand([&](ValueId v) { offer(v, choice.operands[i++][axis]); });
    for (size_t r = 0; r < graph_.nodes[n].outputs.size(); ++r) {
      const auto v = graph_.nodes[n].outputs[r];
      if (v.defined()) offer(v, choice.results[r][axis]);
    }
  }

  const Graph& graph_;
  const plan::Plan& plan_;
  const MatchedRules& rules_;
  const Sharding& base_;
  const std::vector<int>& axes_;
  const WorkPrices& prices_;
  const std::vector<bool>& depends_;
  const Forbidden forbidden_;
  std::vector<std::vector<Place>> users_;                // per value: readers and producer
  std::vector<std::vector<std::vector<DimCut>>> extra_;  // per node and axis: cuts in runs
  std::set<std::tuple<int32_t, int, int64_t>> seen_;
  std::vector<std::pair<int32_t, Placement>> open_;
};

}  // namespace

ShardingOptions::ShardingOptions(const Graph& graph, const plan::Plan& plan,
                                 const MatchedRules& rules, const Sharding& base,
                                 const std::vector<int>& axes, const WorkPrices& prices)
    : depends_(find_dependent(graph)) {
  OptionFinder(graph, plan, rules, base, axes, prices, depends_).run(lists_, list_of_);
}

}  // namespace perigee::shard
