#include "compile/graph/widen_loss.h"

#include <map>
#include <utility>
#include <vector>

#include "graph/ops.h"

namespace perigee::compile {
namespace {

using graph::DType;
using graph::Graph;
using graph::Node;
using graph::NodeId;
using graph::Output;
using graph::Phase;
using graph::TensorType;
using graph::ValueId;

bool reduces(const Node& node) {
  return (node.op == "aten::sum" || node.op == "aten::sum.dim_IntList" || node.op == "aten::mean" ||
          node.op == "aten::mean.dim") &&
         !node.find("dtype");
}

bool is_arithmetic(const Node& node) {
  for (const char* op : {"aten::add.Tensor", "aten::sub.Tensor", "aten::mul.Tensor",
                         "aten::div.Tensor", "aten::add.Scalar", "aten::sub.Scalar",
                         "aten::mul.Scalar", "aten::div.Scalar", "aten::neg"}) {
    if (node.op == op) return true;
  }
  return false;
}

class Widening {
 public:
  explicit Widening(Graph& graph) : graph_(graph) {}

  // Returns the value as float32 arithmetic gives it: another value where it has 16 bits, or is
  // computed from such.
  ValueId of(ValueId v) {
    const auto dtype = graph_.type(v).dtype;
    if (!graph::is_half(dtype) && dtype != DType::float32) return v;
    if (const auto known = wide_.find(v); known != wide_.end()) return known->second;
    auto wide = computed(v);
    if (graph::is_half(graph_.type(wide).dtype)) wide = add("perigee::cast", {{"self", wide}}, v);
    return wide_[v] = wide;
  }

  // Inserts the new nodes after the node `last`.
  void insert_after(NodeId last) {
    const auto count = static_cast<NodeId>(added_.size());
    const NodeId begin = last + 1;
    for (auto& value : graph_.values) value.producer += value.producer >= begin ? count : 0;
    for (auto& node : graph_.nodes) node.forward_node += node.forward_node >= begin ? count : 0;
    for (NodeId n = 0; n < count; ++n)
      graph_.values[added_[n].outputs[0].index].producer = begin + n;
    graph_.nodes.insert(graph_.nodes.begin() + begin, std::make_move_iterator(added_.begin()),
                        std::make_move_iterator(added_.end()));
  }

 private:
  // Returns the value computed in float32, or the value itself where that changes nothing or its op
  // is another one.
  ValueId computed(ValueId v) {
    const auto n = graph_.values[v.index].producer;
    if (n < 0 || !graph_.type(v).shape.empty()) return v;
    auto node = graph_.nodes[n];
    const auto self = node.get<ValueId>("self", {});
    if (reduces(node)) {
      if (!graph::is_half(graph_.type(self).dtype)) return v;
      if (!makes_wide(self, n, graph_.type(v).dtype))
        node.args.emplace_back("dtype", DType::float32);
      return add(node.op, std::move(node.args), v);
    }
    if (node.op == "perigee::cast") {
      const auto wide = of(self);
      return graph_.type(wide).dtype == DType::float32 ? wide : v;
    }
    if (!is_arithmetic(node) && node.op != "perigee::reshape") return v;
    bool scalars = true, changes = false;
    node.each_operand([&](ValueId operand) { scalars &= graph_.type(operand).shape.empty(); });
    if (!scalars) return v;
    node.each_operand([&](ValueId& operand) {
      const auto wide = of(operand);
      changes |= wide != operand;
      operand = wide;
    });
    return changes ? add(node.op, std::move(node.args), v) : v;
  }

  // Lets cross entropy give its losses in float32 where the reduction `reader`, which keeps its type
  // `narrow`, is their one reader.
  bool makes_wide(ValueId losses, NodeId reader, DType narrow) {
    const auto& value = graph_.values[losses.index];
    if (value.producer < 0 || value.result != 0) return false;
    if (graph_.nodes[value.producer].op != "perigee::cross_entropy") return false;
    for (const auto& output : graph_.outputs) {
      if (output.value == losses) return false;
    }
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      bool reads = false;
      graph_.nodes[n].each_operand([&](ValueId operand) { reads |= operand == losses; });
      if (reads && static_cast<NodeId>(n) != reader) return false;
    }
    graph_.values[losses.index].type.dtype = DType::float32;
    graph_.nodes[reader].args.emplace_back("dtype", narrow);
    return true;
  }

  // Adds a node that gives `like` in float32.
  ValueId add(std::string op, std::vector<std::pair<std::string, graph::Arg>> args, ValueId like) {
    const auto made = graph_.add_value({DType::float32, graph_.type(like).shape});
    const auto producer = graph_.values[like.index].producer;
    const auto scope = producer < 0 ? std::string() : graph_.nodes[producer].scope;
    added_.push_back(
        {.op = std::move(op), .args = std::move(args), .outputs = {made}, .scope = scope});
    return made;
  }

  Graph& graph_;
  std::vector<Node> added_;
  std::map<ValueId, ValueId> wide_;
};

}  // namespace

Graph widen_loss(Graph graph) {
  for (auto& output : graph.outputs) {
    if (output.kind != Output::Kind::loss || !graph::is_half(graph.type(output.value).dtype))
      continue;
    const auto producer = graph.values[output.value.index].producer;
    if (producer < 0 || graph.nodes[producer].phase != Phase::forward) continue;
    Widening widening(graph);
    output.value = widening.of(output.value);
    widening.insert_after(producer);
  }
  return graph;
}

}  // namespace perigee::compile
