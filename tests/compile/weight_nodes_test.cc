#include "compile/graph/weight_nodes.h"

#include <catch2/catch.hpp>

using namespace perigee;

namespace {

// Two linear layers y = x w in two parts, with their gradients. `between`: the backward pass of the
// first layer reads the activation between them, too.
struct Layers {
  graph::Graph graph;
  std::vector<int> part;
  graph::NodeId late_weight = -1, early_weight = -1;

  explicit Layers(bool between) {
    graph.scopes = {{"", "Net"}};
    const graph::TensorType type{graph::DType::float32, {4, 4}};
    const auto add = [&](const char* op, graph::ValueId a, graph::ValueId b, int of,
                         graph::Phase phase) {
      part.push_back(of);
      return graph.add_node(op, {{"self", a}, {"mat2", b}}, {type}, "", phase)[0];
    };
    const auto forward = graph::Phase::forward, backward = graph::Phase::backward;
    const auto x = graph.add_input(graph::Input::Kind::data, "x", type);
    const auto w = graph.add_input(graph::Input::Kind::parameter, "w", type);
    const auto u = graph.add_input(graph::Input::Kind::parameter, "u", type);
    const auto y = add("aten::mm", x, w, 0, forward);
    const auto z = add("aten::mm", y, u, 1, forward);
    const auto dy = add("aten::mm", z, u, 1, backward);
    late_weight = static_cast<graph::NodeId>(graph.nodes.size());
    const auto du = add("aten::mm", y, z, 1, backward);
    const auto dz = between ? add("aten::mul.Tensor", dy, y, 0, backward) : dy;
    part.push_back(0);
    graph.add_node("comm::send", {{"self", dz}}, {}, "", backward);
    early_weight = static_cast<graph::NodeId>(graph.nodes.size());
    const auto dw = add("aten::mm", x, dz, 0, backward);
    graph.outputs.push_back({graph::Output::Kind::gradient, "u", du});
    graph.outputs.push_back({graph::Output::Kind::gradient, "w", dw});
  }
};

}  // namespace

TEST_CASE("weight gradients that read a backward value of an earlier part are not delayed") {
  for (const bool between : {false, true}) {
    const Layers layers(between);
    const auto weights = compile::find_weight_nodes(layers.graph, layers.part);
    CHECK(weights[layers.early_weight]);
    CHECK(!weights[layers.late_weight]);  // reads an activation of part 0
    // In one part, both are delayed.
    std::vector<int> one(layers.part.size(), 0);
    CHECK(compile::find_weight_nodes(layers.graph, one)[layers.late_weight]);
  }
}
