#include "compile/graph/fuse/fuse_bias.h"

#include <utility>
#include <vector>

#include "compile/graph/autocast.h"
#include "compile/graph/fuse/readers.h"

namespace perigee::compile {
namespace {

using graph::Graph;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

class FuseBias {
 public:
  FuseBias(const Graph& graph, std::vector<int> parts)
      : graph_(graph),
        result_(graph),
        parts_(std::move(parts)),
        readers_(count_readers(graph)),
        moved_(graph.nodes.size()) {
    result_.nodes.clear();
  }

  Graph run() && {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      Node node = graph_.nodes[n];
      if (node.forward_node >= 0) node.forward_node = moved_[node.forward_node];
      if (const auto product = product_of(node); product >= 0 && are_together(product, n)) {
        replace(std::move(node), product);
      } else {
        append(result_, std::move(node));
      }
      moved_[n] = last();
    }
    return graph::eliminate_dead_code(std::move(result_));
  }

 private:
  NodeId last() const { return static_cast<NodeId>(result_.nodes.size()) - 1; }

  bool are_together(NodeId product, size_t sum) const {
    return parts_.empty() || parts_[static_cast<size_t>(product)] == parts_[sum];
  }

  // Returns the product that the node adds a vector to, or -1.
  NodeId product_of(const Node& node) const {
    if (node.op != "aten::add.Tensor" || node.args.size() != 2) return -1;
    auto v = node.get<ValueId>("self", {});
    const auto bias = node.get<ValueId>("other", {});
    if (!v.defined() || !bias.defined()) return -1;
    const auto& type = graph_.type(node.outputs[0]);
    const auto& added = graph_.type(bias);
    if (graph_.type(v) != type || added.dtype != type.dtype || added.shape.size() != 1 ||
        type.shape.empty() || added.shape[0] != type.shape.back()) {
      return -1;
    }
    while (readers_[v.index] == 1 && graph_.values[v.index].producer >= 0) {
      const auto producer = graph_.values[v.index].producer;
      const auto& maker = graph_.nodes[producer];
      if (takes_bias(maker)) return graph_.type(v).shape[1] == added.shape[0] ? producer : -1;
      if (maker.op != "perigee::reshape" || maker.find("part")) return -1;
      v = maker.get<ValueId>("self", {});
    }
    return -1;
  }

  // Returns whether the node is a product that can add a bias: LibTorch's of eight-bit factors can
  // where the result has 16 bits.
  bool takes_bias(const Node& node) const {
    if (node.op == "aten::mm") return node.args.size() == 2;
    return node.op == "aten::_scaled_mm" && !node.find("bias") &&
           graph::is_half(graph_.type(node.outputs[0]).dtype);
  }

  void replace(Node sum, NodeId product) {
    const auto& mm = graph_.nodes[product];
    Node fused = mm;
    if (fused.forward_node >= 0) fused.forward_node = moved_[fused.forward_node];
    const auto bias = sum.get<ValueId>("other", {});
    if (mm.op == "aten::mm") {
      fused.op = "aten::addmm";
      fused.args = {{"self", bias},
                    {"mat1", mm.get<ValueId>("self", {})},
                    {"mat2", mm.get<ValueId>("mat2", {})}};
    } else {
      fused.args.emplace_back("bias", bias);
    }
    const auto& type = graph_.type(mm.outputs[0]);
    if (graph_.type(sum.outputs[0]) == type) {
      fused.outputs = sum.outputs;
      append(result_, std::move(fused));
      moved_[product] = last();
      return;
    }
    const auto rows = result_.add_value(type);
    fused.outputs = {rows};
    append(result_, std::move(fused));
    moved_[product] = last();
    sum.op = "perigee::reshape";
    sum.args = {{"self", rows}};
    append(result_, std::move(sum));
  }

  const Graph& graph_;
  Graph result_;
  std::vector<int> parts_;     // by node of the graph
  std::vector<int> readers_;   // by value of the graph
  std::vector<NodeId> moved_;  // by node of the graph: its place in the result
};

}  // namespace

Graph fuse_bias(const Graph& graph, std::vector<int> parts) {
  return FuseBias(graph, std::move(parts)).run();
}

}  // namespace perigee::compile
