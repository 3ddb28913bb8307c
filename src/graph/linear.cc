#include "graph/linear.h"

#include <algorithm>

#include "graph/ops.h"

namespace perigee::graph {
namespace {

bool is_bias(const Graph& graph, ValueId v) {
  return graph.type(v).shape.size() == 1 &&
         std::any_of(graph.inputs.begin(), graph.inputs.end(), [&](const Input& input) {
           return input.kind == Input::Kind::parameter && input.value == v;
         });
}

bool is_product(const Graph& graph, ValueId v, const std::string& scope) {
  while (graph.values[v.index].producer >= 0) {
    const auto& node = graph.nodes[graph.values[v.index].producer];
    if (node.op == "aten::mm" || node.op == "aten::bmm") return node.scope == scope;
    if (!is_view(node.op) && node.op != "perigee::reshape") return false;
    v = node.get<ValueId>("self", {});
    if (!v.defined()) return false;
  }
  return false;
}

}  // namespace

bool adds_bias(const Graph& graph, const Node& node) {
  if (node.op != "aten::add.Tensor" || node.phase != Phase::forward || node.args.size() != 2) {
    return false;
  }
  const auto a = node.get<ValueId>("self", {}), b = node.get<ValueId>("other", {});
  return a.defined() && b.defined() && is_bias(graph, b) && is_product(graph, a, node.scope);
}

}  // namespace perigee::graph
