// Insertion of nodes into a graph.
#pragma once

#include <algorithm>

#include "graph/graph.h"

namespace perigee::shard {

// Moves the nodes from `first` to the last to the place after node `after`, which precedes them. No
// backward node refers to them.
inline void move_nodes(graph::Graph& graph, graph::NodeId first, graph::NodeId after) {
  auto& nodes = graph.nodes;
  const auto moved = static_cast<graph::NodeId>(nodes.size()) - first;
  std::rotate(nodes.begin() + after + 1, nodes.begin() + first, nodes.end());
  for (auto& node : nodes) {
    if (node.forward_node > after) node.forward_node += moved;
  }
  for (size_t n = 0; n < nodes.size(); ++n) {
    for (const auto v : nodes[n].outputs) {
      if (v.defined()) graph.values[v.index].producer = static_cast<graph::NodeId>(n);
    }
  }
}

}  // namespace perigee::shard
