#include "compile/graph/fuse/readers.h"

namespace perigee::compile {

std::vector<int> count_readers(const graph::Graph& graph) {
  std::vector<int> readers(graph.values.size());
  for (const auto& node : graph.nodes) {
    node.each_operand([&](graph::ValueId v) { ++readers[v.index]; });
  }
  for (const auto& output : graph.outputs) {
    if (output.value.defined()) ++readers[output.value.index];
  }
  return readers;
}

}  // namespace perigee::compile
