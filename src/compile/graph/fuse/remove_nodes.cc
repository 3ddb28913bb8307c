#include "compile/graph/fuse/remove_nodes.h"

#include <utility>

#include "compile/graph/autocast.h"

namespace perigee::compile {

void remove_nodes(Local& local, const std::vector<bool>& removed) {
  auto& graph = local.graph.graph;
  std::vector<graph::NodeId> moved(removed.size(), -1);
  std::vector<int> sections;
  for (size_t n = 0; auto& node : std::exchange(graph.nodes, {})) {
    if (removed[n]) {
      for (auto v : node.outputs) {
        if (v.defined()) graph.values[v.index].producer = -1;
      }
    } else {
      if (node.forward_node >= 0) node.forward_node = moved[node.forward_node];
      moved[n] = append(graph, std::move(node));
      if (local.stage) sections.push_back(local.stage->section[n]);
    }
    ++n;
  }
  if (local.stage) local.stage->section = std::move(sections);
}

}  // namespace perigee::compile
