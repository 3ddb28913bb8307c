#include "graph/adapters/uses.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/fail.h"

namespace perigee::graph {
namespace {

ValueId operand(const Node& node, std::string_view arg) {
  const auto* found = node.find(arg);
  const auto* v = found ? std::get_if<ValueId>(found) : nullptr;
  return v ? *v : ValueId{};
}

// Returns whether the op swaps the two dims of a matrix.
bool transposes(const Graph& graph, const Node& node) {
  if (node.op == "aten::t") return graph.type(node.outputs[0]).shape.size() == 2;
  if (node.op != "aten::transpose.int" || graph.type(node.outputs[0]).shape.size() != 2) {
    return false;
  }
  const auto first = node.get<int64_t>("dim0", 0), second = node.get<int64_t>("dim1", 0);
  return (first - second) % 2 != 0;
}

// Returns whether the op's result is its operand.
bool repeats(const Graph& graph, const Node& node) {
  if (node.op == "aten::detach" || node.op == "aten::alias") return true;
  return node.op == "perigee::reshape" &&
         graph.type(operand(node, "self")) == graph.type(node.outputs[0]);
}

// Follows transpositions and repeats to the value that they start from.
Oriented origin(const Graph& graph, ValueId v) {
  Oriented found{v};
  for (;;) {
    const auto producer = graph.values[found.value.index].producer;
    if (producer < 0) return found;
    const auto& node = graph.nodes[producer];
    const bool swaps = transposes(graph, node);
    if (!swaps && !repeats(graph, node)) return found;
    found = {operand(node, "self"), found.transposed != swaps};
  }
}

// Returns whether two values are the same, or reshapes of one to the same shape.
bool same(const Graph& graph, const Oriented& a, const Oriented& b) {
  if (a.transposed != b.transposed) return false;
  if (a.value == b.value) return true;
  const auto source = [&](ValueId v) {
    const auto producer = graph.values[v.index].producer;
    const bool reshaped = producer >= 0 && graph.nodes[producer].op == "perigee::reshape";
    return reshaped ? operand(graph.nodes[producer], "self") : ValueId{};
  };
  const auto from = source(a.value);
  return from.defined() && from == source(b.value) && graph.type(a.value) == graph.type(b.value);
}

// The values that are the weight or its transpose.
std::map<ValueId, bool> aliases_of(const Graph& graph, const Readers& readers, ValueId weight) {
  std::map<ValueId, bool> aliases{{weight, false}};
  std::vector<ValueId> open{weight};
  while (!open.empty()) {
    const auto v = open.back();
    open.pop_back();
    for (const auto n : readers[v.index]) {
      const auto& node = graph.nodes[n];
      const bool swaps = transposes(graph, node);
      if (!swaps && !repeats(graph, node)) continue;
      if (aliases.try_emplace(node.outputs[0], aliases[v] != swaps).second) {
        open.push_back(node.outputs[0]);
      }
    }
  }
  return aliases;
}

class Finder {
 public:
  Finder(const Graph& graph, const Readers& readers, const Input& weight)
      : graph_(graph), weight_(weight), aliases_(aliases_of(graph, readers, weight.value)) {
    for (const auto& [v, transposed] : aliases_) {
      for (const auto n : readers[v.index]) {
        if (std::ranges::find(nodes_, n) == nodes_.end()) nodes_.push_back(n);
      }
    }
    std::ranges::sort(nodes_);
  }

  Uses find() {
    for (const auto phase : {Phase::forward, Phase::backward}) {
      for (const auto n : nodes_) {
        const auto& node = graph_.nodes[n];
        if (node.phase != phase || !uses_.refused.empty()) continue;
        if (transposes(graph_, node) || repeats(graph_, node)) continue;
        phase == Phase::forward ? forward(n) : backward(n);
      }
    }
    if (uses_.refused.empty() && uses_.products.empty()) {
      uses_.refused = "is read by no linear layer";
    }
    if (uses_.refused.empty()) gradient();
    return std::move(uses_);
  }

 private:
  std::optional<bool> alias(ValueId v) const {
    const auto found = aliases_.find(v);
    return found == aliases_.end() ? std::nullopt : std::optional(found->second);
  }

  void refuse(const Node& node) {
    uses_.refused = fmt::format("is read by {} in scope \"{}\", which is no linear layer", node.op,
                                node.scope);
  }

  void forward(NodeId n) {
    const auto& node = graph_.nodes[n];
    const bool plain = node.op == "aten::mm";
    if (!plain && node.op != "aten::addmm") return refuse(node);
    const auto x = operand(node, plain ? "self" : "mat1");
    const bool scaled = node.find("alpha") || node.find("beta");
    if (alias(x) || alias(operand(node, "mat2")) != true || scaled ||
        (!plain && alias(operand(node, "self")))) {
      return refuse(node);
    }
    uses_.products.push_back({.forward = n, .x = x, .dy = {}});
  }

  Product* product_of(const Node& node) {
    const auto found = std::ranges::find(uses_.products, node.forward_node, &Product::forward);
    return found == uses_.products.end() ? nullptr : &*found;
  }

  // dx = dy W, or its transpose, W^T dy^T.
  void backward(NodeId n) {
    const auto& node = graph_.nodes[n];
    auto* product = product_of(node);
    if (node.op != "aten::mm" || !product || product->d_input >= 0) return refuse(node);
    if (alias(operand(node, "mat2")) == false && !alias(operand(node, "self"))) {
      product->d_input = n;
    } else if (alias(operand(node, "self")) == true && !alias(operand(node, "mat2"))) {
      product->d_input = n;
      product->d_input_transposed = true;
    } else {
      refuse(node);
    }
  }

  // Finds the terms of the weight's gradient.
  void gradient() {
    const bool trains = std::ranges::any_of(
        graph_.outputs, [](const Output& output) { return output.kind == Output::Kind::gradient; });
    if (!trains) return;
    if (!weight_.trainable) {
      uses_.refused = "is frozen by the model (requires_grad is off)";
      return;
    }
    const auto* output = graph_.find_output(Output::Kind::gradient, weight_.name);
    if (!output || !output->value.defined()) {
      uses_.refused = "does not change the loss";
      return;
    }
    term({output->value});
  }

  // `v`: a term of the gradient, or its transpose.
  void term(Oriented v) {
    const auto start = origin(graph_, v.value);
    v = {start.value, v.transposed != start.transposed};
    const auto producer = graph_.values[v.value.index].producer;
    const auto unknown = [&] {
      uses_.refused = fmt::format("has a gradient by {}, which is not that of a linear layer",
                                  producer < 0 ? "an input" : graph_.nodes[producer].op);
    };
    if (producer < 0) return unknown();
    const auto& node = graph_.nodes[producer];
    if (node.op == "aten::add.Tensor" && !node.find("alpha")) {
      term({operand(node, "self"), v.transposed});
      if (uses_.refused.empty()) term({operand(node, "other"), v.transposed});
      return;
    }
    auto* product = product_of(node);
    if (node.op != "aten::mm" || !product || product->d_weight >= 0) return unknown();
    // dW = dy^T x, or its transpose, x^T dy.
    const auto x = origin(graph_, product->x);
    auto a = origin(graph_, operand(node, "self")), b = origin(graph_, operand(node, "mat2"));
    if (!v.transposed && same(graph_, b, x)) {
      product->dy = {a.value, !a.transposed};
    } else if (a.transposed = !a.transposed; v.transposed && same(graph_, a, x)) {
      product->dy = b;
    } else {
      return unknown();
    }
    product->d_weight = producer;
    if (product->d_input < 0 || product->d_input > producer) return;
    const auto& d_input = graph_.nodes[product->d_input];
    const bool swapped = product->d_input_transposed;
    const auto dy = origin(graph_, operand(d_input, swapped ? "mat2" : "self"));
    product->dy = {dy.value, dy.transposed != swapped};
  }

  const Graph& graph_;
  const Input& weight_;
  std::map<ValueId, bool> aliases_;
  std::vector<NodeId> nodes_;  // readers of the aliases, ascending
  Uses uses_;
};

}  // namespace

Readers readers_of(const Graph& graph) {
  Readers readers(graph.values.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    graph.nodes[n].each_operand(
        [&](ValueId v) { readers[v.index].push_back(static_cast<NodeId>(n)); });
  }
  return readers;
}

Uses uses_of(const Graph& graph, const Readers& readers, std::string_view weight) {
  const auto* input = graph.find_input(weight);
  if (!input || input->kind != Input::Kind::parameter) {
    std::vector<std::string> known;
    for (const auto& other : graph.inputs) {
      if (other.kind == Input::Kind::parameter) known.push_back(other.name);
    }
    fail("adapters", "an adapted weight is a parameter of the model, but got \"{}\"{}", weight,
         did_you_mean(std::string(weight), known));
  }
  const auto& type = graph.type(input->value);
  if (type.shape.size() != 2) {
    return {{},
            type.shape.size() == 3
                ? "has 3 dims, as the weights of stacked experts; linear layers have 2"
                : fmt::format("has {} dim{}, but linear layers have weights of 2",
                              type.shape.size(), type.shape.size() == 1 ? "" : "s")};
  }
  if (!is_floating(type.dtype)) return {{}, "is not floating"};
  return Finder(graph, readers, *input).find();
}

}  // namespace perigee::graph
