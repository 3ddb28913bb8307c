#include "shard/loss/loss_alone.h"

#include <algorithm>

namespace perigee::shard {

using graph::Graph;
using graph::Node;
using graph::ValueId;

Graph loss_alone(Graph graph) {
  std::vector<bool> wanted(graph.values.size());
  std::erase_if(graph.outputs, [](const graph::Output& output) {
    return output.kind != graph::Output::Kind::loss;
  });
  for (const auto& output : graph.outputs) wanted[output.value.index] = true;
  std::vector<Node> kept;
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    auto& node = graph.nodes[n];
    const bool needed = std::any_of(node.outputs.begin(), node.outputs.end(),
                                    [&](ValueId v) { return v.defined() && wanted[v.index]; });
    if (!needed) continue;
    node.each_operand([&](ValueId v) { wanted[v.index] = true; });
    kept.push_back(std::move(node));
  }
  std::reverse(kept.begin(), kept.end());
  graph.nodes = std::move(kept);
  for (auto& value : graph.values) value.producer = -1;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const auto v : graph.nodes[n].outputs) {
      if (v.defined()) graph.values[v.index].producer = static_cast<graph::NodeId>(n);
    }
  }
  return graph;
}

}  // namespace perigee::shard
