#include "compile/graph/join_parts.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace perigee::compile {
namespace {

using graph::Graph;
using graph::Node;
using graph::ValueId;

// A part of a dim: elements [begin, end).
struct Part {
  ValueId value;
  int64_t begin = 0, end = 0;
};

// The parts of one sum, all along one dim and by one op.
struct Parts {
  std::string op;
  int64_t dim = 0;
  std::vector<Part> parts;
};

class JoinParts {
 public:
  explicit JoinParts(Graph graph) : graph_(std::move(graph)), readers_(graph_.values.size()) {
    for (const auto& node : graph_.nodes)
      node.each_operand([&](ValueId v) { ++readers_[v.index]; });
    // An output is read outside of the graph, too.
    for (const auto& output : graph_.outputs) {
      if (output.value.defined()) readers_[output.value.index] += 2;
    }
  }

  Graph run() && {
    for (auto& node : graph_.nodes) {
      if (!is_sum(node)) continue;
      const auto whole = graph_.type(node.outputs[0]);
      Parts found;
      if (!collect(node, found) || !fills(found, whole)) continue;
      std::vector<ValueId> tensors;
      for (const auto& part : found.parts) tensors.push_back(part.value);
      node.op = found.op == "aten::select_backward" ? "aten::stack" : "aten::cat";
      node.args = {{"tensors", std::move(tensors)}, {"dim", found.dim}};
    }
    return graph::eliminate_dead_code(std::move(graph_));
  }

 private:
  static bool is_sum(const Node& node) {
    return node.op == "aten::add.Tensor" && node.args.size() == 2;
  }

  // Adds the parts that the sum adds up. Returns whether it adds up parts only.
  bool collect(const Node& sum, Parts& found) const {
    const auto type = graph_.type(sum.outputs[0]);
    for (const auto* argument : {"self", "other"}) {
      const auto v = sum.get<ValueId>(argument, {});
      if (!v.defined() || graph_.type(v) != type) return false;
      const auto producer = graph_.values[v.index].producer;
      if (producer < 0 || readers_[v.index] != 1) return false;
      const auto& node = graph_.nodes[producer];
      if (is_sum(node) ? !collect(node, found) : !add(node, found)) return false;
    }
    return true;
  }

  bool add(const Node& node, Parts& found) const {
    const bool selects = node.op == "aten::select_backward";
    if (!selects && node.op != "aten::slice_backward") return false;
    const auto& shape = graph_.type(node.outputs[0]).shape;
    const auto rank = static_cast<int64_t>(shape.size());
    auto dim = node.get<int64_t>("dim", 0);
    if (dim < 0) dim += rank;
    if (!found.parts.empty() && (found.op != node.op || found.dim != dim)) return false;
    found.op = node.op;
    found.dim = dim;
    Part part{.value = node.get<ValueId>("grad_output", {})};
    if (!part.value.defined()) return false;
    const auto size = shape[dim];
    const auto place = [&](int64_t at) {
      return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
    };
    if (selects) {
      part.begin = place(node.get<int64_t>("index", 0));
      part.end = part.begin + 1;
    } else {
      if (node.get<int64_t>("step", 1) != 1) return false;
      part.begin = place(node.get<int64_t>("start", 0));
      part.end = place(node.get<int64_t>("end", size));
    }
    found.parts.push_back(part);
    return true;
  }

  static bool fills(Parts& found, const graph::TensorType& whole) {
    std::sort(found.parts.begin(), found.parts.end(),
              [](const Part& a, const Part& b) { return a.begin < b.begin; });
    int64_t at = 0;
    for (const auto& part : found.parts) {
      if (part.begin != at || part.end <= part.begin) return false;
      at = part.end;
    }
    return at == whole.shape[found.dim];
  }

  Graph graph_;
  std::vector<int> readers_;  // by value
};

}  // namespace

Graph join_parts(Graph graph) { return JoinParts(std::move(graph)).run(); }

}  // namespace perigee::compile
