#include "shard/propagate/shard_replicated_work.h"

#include <vector>

#include "shard/propagate/node_sharding.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using graph::ValueId;
using mesh::Placement;

class WorkSharder {
 public:
  WorkSharder(const Graph& graph, const plan::Plan& plan, const MatchedRules& rules,
              Sharding& sharding)
      : graph_(graph), plan_(plan), rules_(rules), sharding_(sharding) {}

  void run() {
    const int axes = static_cast<int>(plan_.mesh.axes.size());
    wanted_.assign(graph_.values.size() * axes, Wanted{});
    fixed_.assign(graph_.values.size(), false);
    for (const auto& output : graph_.outputs) fixed_[output.value.index] = true;
    if (!plan_.placements.empty()) {
      const auto names = graph::value_names(graph_);
      for (size_t v = 0; v < names.size(); ++v) {
        if (plan_.placements.contains(names[v])) fixed_[v] = true;
      }
    }
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      for (int a = 0; a < axes; ++a) shard_node(n, a);
      want(n, axes);
    }
  }

 private:
  struct Wanted {
    bool any = false;
    bool differ = false;
    Placement placement;
  };

  Wanted& wanted(ValueId v, int axis) { return wanted_[v.index * plan_.mesh.axes.size() + axis]; }

  void want(size_t n, int axes) {
    int i = 0;
    graph_.nodes[n].each_operand([&](ValueId v) {
      for (int a = 0; a < axes; ++a) {
        auto& w = wanted(v, a);
        const auto& p = sharding_.operands[n][i][a];
        if (w.any && w.placement != p) w.differ = true;
        w.any = true;
        w.placement = p;
      }
      ++i;
    });
  }

  // The cut that all users of the node's results want, if they agree.
  std::optional<DimCut> cut_wanted(size_t n, const Pattern& pattern, int axis) {
    const auto& node = graph_.nodes[n];
    std::optional<DimCut> cut;
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      const auto v = node.outputs[r];
      if (!v.defined()) continue;
      if (fixed_[v.index] || !sharding_.results[n][r][axis].is_replicate()) return {};
      const auto& w = wanted(v, axis);
      if (!w.any) continue;
      if (w.differ || !w.placement.is_shard()) return {};
      const auto here = pattern.cut_of(w.placement, true, static_cast<int>(r));
      if (!here || (cut && *cut != *here)) return {};
      cut = here;
    }
    return cut;
  }

  void shard_node(size_t n, int axis) {
    const auto& pattern = rules_.at(n).pattern;
    if (!pattern || !pattern->in_place.empty()) return;
    const auto cut = cut_wanted(n, *pattern, axis);
    if (!cut) return;
    const auto& node = graph_.nodes[n];
    auto& operands = sharding_.operands[n];
    auto& results = sharding_.results[n];
    for (const auto& placements : operands) {
      if (!placements[axis].is_replicate()) return;
    }
    std::vector<Placement> placed(node.outputs.size());
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      if (!node.outputs[r].defined()) continue;
      const auto p = pattern->placed(*cut, true, static_cast<int>(r));
      if (!p) return;
      placed[r] = *p;
    }
    // The axes that already have this cut, and this one.
    std::vector<int> axes;
    for (int b = 0; b < static_cast<int>(plan_.mesh.axes.size()); ++b) {
      bool sharded = b == axis;
      for (size_t r = 0; r < node.outputs.size(); ++r) {
        if (node.outputs[r].defined()) sharded |= results[r][b] == placed[r];
      }
      if (sharded) axes.push_back(b);
    }
    const Call call(graph_, node);
    if (!may_shard(call, *pattern, *cut, axes, plan_.mesh)) return;
    NodeSharding choice{operands, results};
    for (size_t i = 0; i < operands.size(); ++i) {
      const auto p = pattern->placed(*cut, false, static_cast<int>(i));
      if (p) choice.operands[i][axis] = *p;
    }
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      if (node.outputs[r].defined()) choice.results[r][axis] = placed[r];
    }
    if (!runs_divide(call, choice, plan_.mesh)) return;
    operands = std::move(choice.operands);
    results = std::move(choice.results);
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      const auto v = node.outputs[r];
      if (v.defined()) sharding_.values[v.index][axis] = placed[r];
    }
  }

  const Graph& graph_;
  const plan::Plan& plan_;
  const MatchedRules& rules_;
  Sharding& sharding_;
  std::vector<Wanted> wanted_;  // per value and axis
  std::vector<bool> fixed_;     // per value: an output, or pinned
};

}  // namespace

void shard_replicated_work(const Graph& graph, const plan::Plan& plan, const MatchedRules& rules,
                           Sharding& sharding) {
  WorkSharder(graph, plan, rules, sharding).run();
}

}  // namespace perigee::shard
