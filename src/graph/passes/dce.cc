#include <algorithm>

#include "graph/graph.h"

namespace perigee::graph {
namespace {

// Nodes that affect other ranks are needed even if their results are not.
bool has_effect(const Node& node) {
  return node.op == "comm::send" || node.op == "comm::receive" || node.outputs.empty();
}

// Removes the nodes not in `keep` and renumbers forward_node.
void remove_nodes(Graph& graph, const std::vector<bool>& keep) {
  std::vector<NodeId> moved(graph.nodes.size(), -1);
  NodeId next = 0;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (keep[i]) moved[i] = next++;
  }
  std::vector<Node> nodes;
  nodes.reserve(next);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!keep[i]) continue;
    auto& node = nodes.emplace_back(std::move(graph.nodes[i]));
    if (node.forward_node >= 0) node.forward_node = moved[node.forward_node];
  }
  graph.nodes = std::move(nodes);
}

}  // namespace

Graph eliminate_dead_code(Graph graph) {
  std::vector<bool> used(graph.values.size());
  std::vector<bool> keep(graph.nodes.size());
  for (const auto& output : graph.outputs) {
    if (output.value.defined()) used[output.value.index] = true;
  }
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const auto& node = graph.nodes[i];
    keep[i] = has_effect(node) || std::any_of(node.outputs.begin(), node.outputs.end(),
                                              [&](auto v) { return v.defined() && used[v.index]; });
    if (keep[i]) node.each_operand([&](ValueId v) { used[v.index] = true; });
  }
  remove_nodes(graph, keep);
  std::erase_if(graph.inputs, [&](const Input& input) {
    return input.kind == Input::Kind::constant && !used[input.value.index];
  });
  return renumber(std::move(graph));
}

}  // namespace perigee::graph
