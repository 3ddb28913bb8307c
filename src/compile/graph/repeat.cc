#include "compile/graph/repeat.h"

#include <algorithm>
#include <cstdint>

namespace perigee::compile {

using graph::Graph;
using graph::Node;
using graph::NodeId;
using graph::Phase;
using graph::ValueId;

namespace {

class Repeater {
 public:
  Repeater(const Graph& graph, const std::vector<bool>& repeated)
      : graph_(graph),
        repeated_(repeated),
        copy_(graph.values.size()),
        moved_(graph.nodes.size(), -1),
        wanted_by_(graph.nodes.size(), -1),
        copied_(graph.nodes.size()) {}

  Repeated run() {
    Graph result = graph_;
    result.nodes.clear();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      Node node = graph_.nodes[n];
      if (node.phase == Phase::backward) {
        node.each_operand([&](ValueId& v) { v = repeat(result, v); });
        if (node.forward_node >= 0) node.forward_node = moved_[node.forward_node];
      }
      moved_[n] = static_cast<NodeId>(result.nodes.size());
      for (ValueId v : node.outputs) {
        if (v.defined()) result.values[v.index].producer = moved_[n];
      }
      result.nodes.push_back(std::move(node));
    }
    // Forward ops whose results only the backward pass read are removed.
    return {graph::eliminate_dead_code(std::move(result)), std::move(copied_)};
  }

 private:
  // Returns the value that the backward pass reads instead of `v`; appends the copies that make it.
  ValueId repeat(Graph& result, ValueId v) {
    if (!repeated_[v.index]) return v;
    if (copy_[v.index].defined()) return copy_[v.index];
    // The nodes to copy, found from the last one back and copied in their order.
    std::vector<NodeId> wanted, open{graph_.values[v.index].producer};
    while (!open.empty()) {
      const auto n = open.back();
      open.pop_back();
      if (wanted_by_[n] == v.index) continue;
      wanted_by_[n] = v.index;
      wanted.push_back(n);
      graph_.nodes[n].each_operand([&](ValueId operand) {
        if (repeated_[operand.index] && !copy_[operand.index].defined()) {
          open.push_back(graph_.values[operand.index].producer);
        }
      });
    }
    std::sort(wanted.begin(), wanted.end());
    for (const auto n : wanted) copy_node(result, n);
    return copy_[v.index];
  }

  void copy_node(Graph& result, NodeId n) {
    copied_[n] = true;
    Node node = graph_.nodes[n];
    node.phase = Phase::backward;
    node.forward_node = moved_[n];
    node.each_operand([&](ValueId& v) {
      if (repeated_[v.index]) v = copy_[v.index];
    });
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      auto& out = node.outputs[r];
      if (!out.defined()) continue;
      const auto from = out;
      out = result.add_value(graph_.type(from));
      result.values[out.index].producer = static_cast<NodeId>(result.nodes.size());
      result.values[out.index].result = static_cast<int32_t>(r);
      copy_[from.index] = out;
    }
    result.nodes.push_back(std::move(node));
  }

  const Graph& graph_;
  const std::vector<bool>& repeated_;
  std::vector<ValueId> copy_;       // by value of the graph
  std::vector<NodeId> moved_;       // by node: its index in the result
  std::vector<int32_t> wanted_by_;  // by node: the last value for which it was found
  std::vector<bool> copied_;        // by node
};

}  // namespace

Repeated repeat(const Graph& graph, const std::vector<bool>& repeated) {
  return Repeater(graph, repeated).run();
}

}  // namespace perigee::compile
