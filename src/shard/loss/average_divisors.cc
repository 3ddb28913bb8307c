#include "shard/loss/classify_loss.h"
#include "shard/loss/move_nodes.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

// Replaces operand `from` of a node by `to` where it divides by it; in the backward pass everywhere,
// since forward uses are divisions only.
void replace(Node& node, ValueId from, ValueId to) {
  for (auto& [name, arg] : node.args) {
    auto* value = std::get_if<ValueId>(&arg);
    if (!value || *value != from) continue;
    const bool divides = node.op == "aten::div.Tensor" && name == "other";
    if (divides || node.phase == graph::Phase::backward) *value = to;
  }
}

// Appends the average of the divisor, in its own shape and in the type of the quotients.
ValueId average(Graph& graph, ValueId divisor, graph::DType dtype, const std::string& scope) {
  auto type = graph.type(divisor);
  const auto shape = type.shape;
  auto value = divisor;
  if (type.dtype != dtype) {
    type.dtype = dtype;
    value = graph.add_node("perigee::cast", {{"self", value}}, {type}, scope)[0];
  }
  const graph::TensorType scalar{dtype, {}};
  if (!shape.empty()) {
    value = graph.add_node("perigee::reshape", {{"self", value}}, {scalar}, scope)[0];
  }
  value = graph.add_node("perigee::step_average", {{"self", value}}, {scalar}, scope)[0];
  if (!shape.empty()) {
    value = graph.add_node("perigee::reshape", {{"self", value}}, {type}, scope)[0];
  }
  return value;
}

// Returns the type of the first quotient by the divisor.
graph::DType quotient_type(const Graph& graph, ValueId divisor) {
  for (const auto& node : graph.nodes) {
    const auto* other = node.find("other");
    if (node.op == "aten::div.Tensor" && other && *other == graph::Arg(divisor)) {
      return graph.type(node.outputs[0]).dtype;
    }
  }
  return graph.type(divisor).dtype;
}

}  // namespace

Graph average_divisors(Graph graph, const std::vector<ValueId>& divisors) {
  for (const auto divisor : divisors) {
    const auto producer = graph.values[divisor.index].producer;
    const auto end = static_cast<NodeId>(graph.nodes.size());
    const auto averaged = average(graph, divisor, quotient_type(graph, divisor),
                                  graph.nodes[producer].scope);
    for (NodeId n = 0; n < end; ++n) replace(graph.nodes[n], divisor, averaged);
    move_nodes(graph, end, producer);
  }
  return graph;
}

}  // namespace perigee::shard
