#include <unordered_map>

#include "graph/graph.h"

namespace perigee::graph {
namespace {

// Returns the op's name without namespace and overload: "aten::add.Tensor" -> "add".
std::string_view short_name(std::string_view op) {
  if (const auto colons = op.find("::"); colons != std::string_view::npos)
    op.remove_prefix(colons + 2);
  return op.substr(0, op.find('.'));
}

}  // namespace

std::vector<std::string> value_names(const Graph& graph) {
  std::vector<std::string> names(graph.values.size());
  for (const auto& input : graph.inputs) names[input.value.index] = input.name;
  std::unordered_map<std::string, int64_t> count;
  for (const auto& node : graph.nodes) {
    std::string name = node.scope;
    name += node.phase == Phase::forward ? "/" : "/'";
    name += short_name(node.op);
    const auto k = count[name]++;
    name += '.';
    name += std::to_string(k);
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      if (!node.outputs[r].defined()) continue;
      names[node.outputs[r].index] = r == 0 ? name : name + ":" + std::to_string(r);
    }
  }
  return names;
}

}  // namespace perigee::graph
