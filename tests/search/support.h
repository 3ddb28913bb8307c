// The joint graph of a small model: a product as prologue, identical blocks, an optional product as
// epilogue, and a loss.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace perigee::search {

struct Chain {
  int64_t blocks = 6;
  int64_t batch = 8;
  int64_t width = 64;
  int64_t gelus = 1;  // after each product
  bool head = false;  // one more product after the blocks
};

// x -> embed -> (product, gelus) x blocks -> head -> mean squared error against `target`.
// Parameters "embed.weight", "blocks.K.weight" and "head.weight".
inline graph::Graph chain(Chain shape) {
  using namespace graph;
  Graph g;
  const TensorType activation{DType::float32, {shape.batch, shape.width}};
  const TensorType weight{DType::float32, {shape.width, shape.width}};
  const TensorType scalar{DType::float32, {}};
  const auto x = g.add_input(Input::Kind::data, "x", activation);
  const auto target = g.add_input(Input::Kind::data, "target", activation);
  g.scopes = {{"", "Chain"}, {"embed", "Linear"}, {"blocks", "ModuleList"}};
  std::vector<std::string> scopes{"embed"};
  for (int64_t k = 0; k < shape.blocks; ++k) scopes.push_back("blocks." + std::to_string(k));
  if (shape.head) scopes.emplace_back("head");
  std::vector<ValueId> weights, inputs{x};
  std::vector<std::vector<ValueId>> gelu_inputs;  // of each block
  for (const auto& name : scopes) {
    weights.push_back(g.add_input(Input::Kind::parameter, name + ".weight", weight));
    if (name != "embed") g.scopes.push_back({name, "Linear"});
  }
  std::string scope;
  Phase phase = Phase::forward;
  NodeId made_by = -1;  // of backward nodes
  const auto one = [&](std::string op, std::vector<std::pair<std::string, Arg>> args,
                       TensorType type) {
    const auto value = g.add_node(std::move(op), std::move(args), {std::move(type)}, scope, phase);
    g.nodes.back().forward_node = made_by;
    return value[0];
  };
  std::vector<NodeId> product_nodes;
  const auto last = [&] { return static_cast<NodeId>(g.nodes.size()) - 1; };
  for (size_t k = 0; k < scopes.size(); ++k) {
    scope = scopes[k];
    const auto t = one("aten::t", {{"self", weights[k]}}, weight);
    auto y = one("aten::mm", {{"self", inputs[k]}, {"mat2", t}}, activation);
    product_nodes.push_back(last());
    gelu_inputs.emplace_back();
    for (int64_t n = 0; n < shape.gelus; ++n) {
      gelu_inputs.back().push_back(y);
      y = one("aten::gelu", {{"self", y}}, activation);
    }
    inputs.push_back(y);
  }
  scope = "";
  const auto difference = one("aten::sub.Tensor", {{"self", inputs.back()}, {"other", target}},
                              activation);
  const auto square = one("aten::mul.Tensor", {{"self", difference}, {"other", difference}},
                          activation);
  g.outputs.push_back({Output::Kind::loss, "loss", one("aten::mean", {{"self", square}}, scalar)});
  phase = Phase::backward;
  made_by = last();
  const auto seed = one("perigee::full", {{"value", 1.0}}, scalar);
  const auto wide = one("perigee::expand", {{"self", seed}}, activation);
  const auto scaled = one("aten::div.Scalar",
                          {{"self", wide}, {"other", double(shape.batch * shape.width) / 2}},
                          activation);
  auto gradient = one("aten::mul.Tensor", {{"self", scaled}, {"other", difference}}, activation);
  for (size_t k = scopes.size(); k-- > 0;) {
    scope = scopes[k];
    auto inner = gradient;
    for (int64_t n = shape.gelus; n-- > 0;) {
      made_by = product_nodes[k] + 1 + static_cast<NodeId>(n);
      const auto self = gelu_inputs[k][static_cast<size_t>(n)];
      inner = one("aten::gelu_backward", {{"grad_output", inner}, {"self", self}}, activation);
    }
    made_by = product_nodes[k];
    const auto t = one("aten::t", {{"self", inner}}, {DType::float32, {shape.width, shape.batch}});
    const auto product = one("aten::mm", {{"self", t}, {"mat2", inputs[k]}}, weight);
    g.outputs.push_back({Output::Kind::gradient, scope + ".weight", product});
    if (k > 0) gradient = one("aten::mm", {{"self", inner}, {"mat2", weights[k]}}, activation);
  }
  verify(g);
  return g;
}

}  // namespace perigee::search
