#include "compile/graph/weight_nodes.h"

#include <algorithm>
#include <limits>

#include "base/fail.h"
#include "compile/draft/lower.h"
#include "plan/pipeline.h"

namespace perigee::compile {

using graph::Graph;
using graph::NodeId;
using graph::Phase;

namespace {

// Returns, by value, the base of which it is, or may be, a view.
std::vector<int32_t> roots_of(const Graph& graph) {
  std::vector<int32_t> roots(graph.values.size());
  for (size_t v = 0; v < roots.size(); ++v) roots[v] = static_cast<int32_t>(v);
  for (const auto& node : graph.nodes) {
    if (!shows_operand(node.op)) continue;
    graph::ValueId shown;
    node.each_operand([&](graph::ValueId v) {
      if (!shown.defined()) shown = v;
    });
    for (auto v : node.outputs) {
      if (v.defined() && shown.defined()) roots[v.index] = roots[shown.index];
    }
  }
  return roots;
}

class WeightNodes {
 public:
  WeightNodes(const Graph& graph, const std::vector<int>& part)
      : graph_(graph), part_(part), weights_(graph.nodes.size()) {}

  std::vector<bool> run() {
    leave_what_is_sent();
    for (bool changed = true; changed;) {
      changed = move_shared();
      changed = move_adjacent() || changed;
    }
    return std::move(weights_);
  }

 private:
  bool is_backward(size_t n) const { return graph_.nodes[n].phase == Phase::backward; }

  void leave_what_is_sent() {
    std::vector<bool> wanted(graph_.values.size());
    // A sum that an earlier part adds to must be ready before that.
    for (size_t o = 1; o < graph_.outputs.size(); ++o) {
      const auto &output = graph_.outputs[o - 1], &next = graph_.outputs[o];
      const bool same = output.kind == graph::Output::Kind::gradient && next.kind == output.kind &&
                        next.name == output.name;
      if (same && output.value.defined()) wanted[output.value.index] = true;
    }
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const auto& node = graph_.nodes[n];
      if (!is_backward(n)) continue;
      bool sent = node.op == "comm::send" || node.op == "comm::receive" || node.op == plan::kCross;
      for (auto v : node.outputs) sent = sent || (v.defined() && wanted[v.index]);
      if (!sent) {
        weights_[n] = true;
        continue;
      }
      node.each_operand([&](graph::ValueId v) { wanted[v.index] = true; });
    }
  }

  // Moves a node, and the nodes that compute its operands, into the backward pass.
  bool move_to_backward(NodeId node) {
    bool any = false;
    std::vector<NodeId> open{node};
    while (!open.empty()) {
      const auto n = open.back();
      open.pop_back();
      if (n < 0 || !weights_[n]) continue;
      weights_[n] = false;
      any = true;
      graph_.nodes[n].each_operand(
          [&](graph::ValueId v) { open.push_back(graph_.values[v.index].producer); });
    }
    return any;
  }

  // Moves gradients that another part of this stage reads into the backward pass.
  bool move_shared() {
    bool any = false;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!is_backward(n)) continue;
      graph_.nodes[n].each_operand([&](graph::ValueId v) {
        const auto producer = graph_.values[v.index].producer;
        if (producer >= 0 && part_[producer] != part_[n]) any = move_to_backward(producer) || any;
      });
    }
    return any;
  }

  // The schedule chooses for each microbatch whether a part's weight gradients run before or after
  // the backward pass of an earlier part. So that lifetimes are known, values that both read, or
  // that the earlier part made, are read in the later part's backward pass.
  bool move_adjacent() {
    const auto roots = roots_of(graph_);
    std::vector<bool> lasts(graph_.values.size()), loaded(graph_.values.size());
    for (const auto& input : graph_.inputs) {
      (input.kind == graph::Input::Kind::data ? loaded : lasts)[input.value.index] = true;
    }
    std::vector<int> earliest(graph_.values.size(), std::numeric_limits<int>::max());
    const auto note = [&](graph::ValueId v, int part) {
      auto& known = earliest[roots[v.index]];
      known = std::min(known, part);
    };
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const auto& node = graph_.nodes[n];
      for (auto v : node.outputs) {
        if (v.defined() && !shows_operand(node.op)) note(v, part_[n]);
      }
      node.each_operand([&](graph::ValueId v) {
        if (is_backward(n) || loaded[roots[v.index]]) note(v, part_[n]);
      });
    }
    bool any = false;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!weights_[n]) continue;
      bool early = false;
      graph_.nodes[n].each_operand([&](graph::ValueId v) {
        const auto root = roots[v.index];
        early = early || (!lasts[root] && earliest[root] < part_[n]);
      });
      if (early) any = move_to_backward(static_cast<NodeId>(n)) || any;
    }
    return any;
  }

  const Graph& graph_;
  const std::vector<int>& part_;
  std::vector<bool> weights_;
};

}  // namespace

std::vector<bool> find_weight_nodes(const Graph& graph, const std::vector<int>& part) {
  return WeightNodes(graph, part).run();
}

std::vector<bool> find_deferred_nodes(const Graph& graph, const std::vector<int>& part,
                                      const std::vector<std::string>& parameters) {
  auto deferred = find_weight_nodes(graph, part);
  // By value: `wanted`, if a node other than those of these gradients reads it.
  std::vector<bool> wanted(graph.values.size()), useful(graph.values.size());
  for (const auto& output : graph.outputs) {
    if (!output.value.defined()) continue;
    const bool gradient = output.kind == graph::Output::Kind::gradient;
    const bool named = std::find(parameters.begin(), parameters.end(), output.name) !=
                       parameters.end();
    (gradient && named ? useful : wanted)[output.value.index] = true;
  }
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const auto& node = graph.nodes[n];
    bool own = false;
    for (auto v : node.outputs) {
      if (!v.defined()) continue;
      own = own || useful[v.index];
      deferred[n] = deferred[n] && !wanted[v.index];
    }
    deferred[n] = deferred[n] && own;
    node.each_operand([&](graph::ValueId v) { (deferred[n] ? useful : wanted)[v.index] = true; });
  }
  for (const auto& node : graph.nodes) {
    if (node.op != "comm::send") continue;
    node.each_operand([&](graph::ValueId v) {
      if (!useful[v.index]) return;
      fail("overlap",
           "a deferred weight gradient must not depend on messages, but that of {} reads values "
           "that scope '{}' sends: leave deferred_head out, or cut the stages elsewhere",
           fmt::join(parameters, ", "), node.scope);
    });
  }
  return deferred;
}

}  // namespace perigee::compile
