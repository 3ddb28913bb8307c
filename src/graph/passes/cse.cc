#include <numeric>
#include <unordered_map>

#include "graph/graph.h"
#include "graph/identity/canonical.h"
#include "graph/ops.h"

namespace perigee::graph {
namespace {

// Returns a string that is equal for nodes that may be merged.
std::string key_of(const Graph& graph, const Node& node) {
  std::string key;
  append_call(key, node);
  append_bytes(key, node.scope);
  key += static_cast<char>(node.phase);
  for (auto v : node.outputs) {
    key += static_cast<char>(v.defined());
    if (v.defined()) append_bytes(key, graph.type(v));
  }
  return key;
}

}  // namespace

Graph eliminate_common_subexpressions(Graph graph) {
  std::vector<int32_t> same_value(graph.values.size());
  std::iota(same_value.begin(), same_value.end(), 0);
  std::vector<NodeId> same_node(graph.nodes.size());
  std::unordered_map<std::string, NodeId> first;
  std::vector<Node> nodes;
  nodes.reserve(graph.nodes.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    auto& node = graph.nodes[i];
    node.each_operand([&](ValueId& v) { v.index = same_value[v.index]; });
    const auto next = static_cast<NodeId>(nodes.size());
    same_node[i] = next;
    if (!node.outputs.empty() && !is_collective(node.op)) {
      const auto [found, inserted] = first.emplace(key_of(graph, node), next);
      if (!inserted) {
        same_node[i] = found->second;
        const auto& kept = nodes[found->second].outputs;
        for (size_t r = 0; r < kept.size(); ++r) {
          if (kept[r].defined()) same_value[node.outputs[r].index] = kept[r].index;
        }
        continue;
      }
    }
    if (node.forward_node >= 0) node.forward_node = same_node[node.forward_node];
    nodes.push_back(std::move(node));
  }
  graph.nodes = std::move(nodes);
  for (auto& output : graph.outputs) {
    if (output.value.defined()) output.value.index = same_value[output.value.index];
  }
  return renumber(std::move(graph));
}

}  // namespace perigee::graph
