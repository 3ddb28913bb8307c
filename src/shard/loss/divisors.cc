#include "shard/loss/divisors.h"

#include <algorithm>
#include <string>
#include <utility>

#include "shard/loss/move_nodes.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using graph::Node;
using graph::NodeId;
using graph::ValueId;
using Arguments = std::vector<std::pair<std::string, graph::Arg>>;

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

ValueId cast(Graph& graph, ValueId value, graph::DType dtype, const std::string& scope) {
  auto type = graph.type(value);
  if (type.dtype == dtype) return value;
  type.dtype = dtype;
  return graph.add_node("perigee::cast", {{"self", value}}, {type}, scope)[0];
}

// Appends the op, which takes and returns a number without dims, and returns its result in the shape
// of the operand.
ValueId apply(Graph& graph, std::string op, Arguments arguments, ValueId value,
              const std::string& scope) {
  const auto type = graph.type(value);
  const graph::TensorType scalar{type.dtype, {}};
  if (!type.shape.empty()) {
    value = graph.add_node("perigee::reshape", {{"self", value}}, {scalar}, scope)[0];
  }
  arguments.insert(arguments.begin(), {"self", value});
  value = graph.add_node(std::move(op), std::move(arguments), {scalar}, scope)[0];
  if (!type.shape.empty()) {
    value = graph.add_node("perigee::reshape", {{"self", value}}, {type}, scope)[0];
  }
  return value;
}

// Appends copies of the nodes that compute the divisor from its sum, with `value` in the place of the
// sum. Returns the copy of the divisor.
ValueId compute_again(Graph& graph, const Divisor& divisor, ValueId value) {
  for (size_t i = 1; i < divisor.values.size(); ++i) {
    auto node = graph.nodes[graph.values[divisor.values[i].index].producer];
    node.each_operand([&](ValueId& v) {
      if (v == divisor.values[i - 1]) v = value;
    });
    value = graph.add_node(node.op, std::move(node.args), {graph.type(node.outputs[0])},
                           node.scope)[0];
  }
  return value;
}

// Appends the divisor of the whole step, that by a sum divided by the number of microbatches, in the
// type of the quotients.
ValueId of_step(Graph& graph, const Divisor& divisor, graph::DType dtype,
                const std::string& scope) {
  const auto first = divisor.values.front();
  if (divisor.values.size() == 1) {
    return apply(graph, "perigee::step_average", {}, cast(graph, first, dtype, scope), scope);
  }
  const auto type = graph.type(first).dtype;
  const auto wide = !graph::is_floating(type)  ? graph::DType::float64
                    : graph::size_of(type) < 4 ? graph::DType::float32
                                               : type;
  const auto whole = apply(graph, "perigee::step_average",
                           divisor.mean ? Arguments{} : Arguments{{"total", true}},
                           cast(graph, first, wide, scope), scope);
  const auto value = cast(graph, compute_again(graph, divisor, cast(graph, whole, type, scope)),
                          dtype, scope);
  return divisor.mean ? value : apply(graph, "perigee::step_share", {}, value, scope);
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

// Returns whether the number comes from one of the whole step, in another shape or type.
bool is_of_step(const Graph& graph, ValueId number) {
  while (graph.values[number.index].producer >= 0) {
    const auto& maker = graph.nodes[graph.values[number.index].producer];
    if (maker.op == "perigee::step_average" || maker.op == "perigee::step_share") return true;
    if (maker.op != "perigee::reshape" && maker.op != "perigee::cast") break;
    number = maker.only_operand();
  }
  return false;
}

}  // namespace

Divisor find_divisor(const Graph& graph, ValueId number, const Dependence& dependence) {
  Divisor found;
  while (graph.type(number).numel() == 1 && dependence.of_data(number)) {
    found.values.insert(found.values.begin(), number);
    found.mean = dependence.is_mean(number);
    if (found.mean || dependence.is_sum(number)) return found;
    if (graph.values[number.index].producer < 0) break;
    const auto& maker = graph.nodes[graph.values[number.index].producer];
    std::vector<ValueId> of_samples;
    maker.each_operand([&](ValueId v) {
      if (dependence.of_samples(v)) of_samples.push_back(v);
    });
    if (maker.outputs.size() != 1 || of_samples.size() != 1) break;
    number = of_samples[0];
  }
  return {};
}

bool is_of_step(const Graph& graph, const Divisor& divisor) {
  return is_of_step(graph, divisor.values.front()) || is_of_step(graph, divisor.values.back());
}

Graph average_divisors(Graph graph, const std::vector<Divisor>& divisors) {
  for (const auto& divisor : divisors) {
    const auto last = divisor.values.back();
    const auto producer = graph.values[last.index].producer;
    const auto end = static_cast<NodeId>(graph.nodes.size());
    const auto value = of_step(graph, divisor, quotient_type(graph, last),
                               graph.nodes[producer].scope);
    for (NodeId n = 0; n < end; ++n) replace(graph.nodes[n], last, value);
    move_nodes(graph, end, producer);
  }
  return graph;
}

Graph with_shares(Graph graph, int64_t microbatches) {
  for (auto& node : graph.nodes) {
    if (node.op != "perigee::step_share") continue;
    node.op = "aten::div.Scalar";
    node.args.emplace_back("other", static_cast<double>(microbatches));
  }
  return graph;
}

}  // namespace perigee::shard
