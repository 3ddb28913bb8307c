#include "graph/graph.h"

namespace perigee::graph {

Graph renumber(Graph graph) {
  std::vector<int32_t> index(graph.values.size(), -1);
  std::vector<Value> values;
  values.reserve(graph.values.size());
  const auto keep = [&](ValueId& v, NodeId producer, int32_t result) {
    index[v.index] = static_cast<int32_t>(values.size());
    values.push_back({std::move(graph.values[v.index].type), producer, result});
    v.index = index[v.index];
  };
  for (auto& input : graph.inputs) keep(input.value, -1, 0);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    auto& node = graph.nodes[i];
    node.each_operand([&](ValueId& v) { v.index = index[v.index]; });
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      if (node.outputs[r].defined()) {
        keep(node.outputs[r], static_cast<NodeId>(i), static_cast<int32_t>(r));
      }
    }
  }
  for (auto& output : graph.outputs) {
    if (output.value.defined()) output.value.index = index[output.value.index];
  }
  graph.values = std::move(values);
  return graph;
}

}  // namespace perigee::graph
