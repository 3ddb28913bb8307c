// Adapters beside products of a graph: which ops and parameters they add, and what they refuse.
#include "graph/adapters/adapters.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/graph/support.h"

namespace perigee::graph {
namespace {

using Catch::Matchers::Contains;
using Names = std::vector<std::string>;

Names inputs_of(const Graph& graph) {
  Names names;
  for (const auto& input : graph.inputs) {
    names.push_back(input.name + (input.trainable ? "" : " frozen"));
  }
  return names;
}

Names gradients_of(const Graph& graph) {
  Names names;
  for (const auto& output : graph.outputs) {
    if (output.kind == Output::Kind::gradient) names.push_back(output.name);
  }
  return names;
}

int64_t count(const Graph& graph, const std::string& op, Phase phase) {
  return std::ranges::count_if(
      graph.nodes, [&](const Node& node) { return node.op == op && node.phase == phase; });
}

std::string why(const Graph& graph, const Adapters& adapters) {
  try {
    adapt(graph, adapters);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// The graph of two_layers() without its backward pass.
Graph forward_only() {
  auto graph = two_layers();
  std::erase_if(graph.outputs, [](const auto& o) { return o.kind == Output::Kind::gradient; });
  return eliminate_dead_code(std::move(graph));
}

}  // namespace

TEST_CASE("an adapter adds two parameters, which alone are trained") {
  const auto graph = adapt(two_layers(), {.weights = {"fc1.weight"}, .rank = 3});
  verify(graph);
  CHECK(inputs_of(graph) == Names{"fc1.weight frozen", "fc1.lora_A.weight", "fc1.lora_B.weight",
                                  "fc2.weight frozen", "x"});
  CHECK(gradients_of(graph) == Names{"fc1.lora_A.weight", "fc1.lora_B.weight"});
  CHECK(graph.type(graph.find_input("fc1.lora_A.weight")->value).shape ==
        std::vector<int64_t>{3, 8});
  CHECK(graph.type(graph.find_input("fc1.lora_B.weight")->value).shape ==
        std::vector<int64_t>{16, 3});
  // Forward: two more products. Backward: gradients of A, B and the hidden values, and those of
  // the input of fc2; none of a frozen weight, and none of the data.
  CHECK(count(graph, "aten::mm", Phase::forward) == 4);
  CHECK(count(graph, "aten::mm", Phase::backward) == 4);
  for (const auto& node : graph.nodes) {
    if (node.phase == Phase::backward && node.op == "aten::mm") CHECK(node.forward_node >= 0);
  }
  CHECK(has_adapters(graph, {.weights = {"fc1.weight"}, .rank = 3}));
  CHECK_FALSE(has_adapters(graph, {.weights = {"fc1.weight"}, .rank = 4}));
  CHECK(is_adapter(graph, "fc1.lora_B.weight"));
  CHECK_FALSE(is_adapter(graph, "fc1.weight"));
}

TEST_CASE("the gradient of an adapted layer's input has the adapter's term") {
  const auto graph = adapt(two_layers(), {.weights = {"fc1.weight", "fc2.weight"}, .rank = 2});
  verify(graph);
  // Of fc1: A, B and hidden; of fc2: also the input's two terms.
  CHECK(count(graph, "aten::mm", Phase::backward) == 3 + 5);
  CHECK(count(graph, "aten::add.Tensor", Phase::backward) == 1);
  CHECK(count(graph, "aten::add.Tensor", Phase::forward) == 2);
}

TEST_CASE("new ops have the scopes of their products") {
  const auto graph = adapt(two_layers(), {.weights = {"fc2.weight"}, .rank = 2});
  for (const auto& node : graph.nodes) {
    if (node.op == "aten::mul.Scalar" || node.op == "aten::add.Tensor") CHECK(node.scope == "fc2");
  }
}

TEST_CASE("dropout has a key of its own for each product, shared by both passes") {
  const Adapters adapters{.weights = {"fc1.weight", "fc2.weight"}, .rank = 2, .dropout = 0.1};
  std::map<int64_t, int> keys;
  for (const auto& node : adapt(two_layers(), adapters).nodes) {
    if (node.op == "perigee::dropout") ++keys[node.get<int64_t>("key", -1)];
  }
  // The gradient of fc1's input is that of the data: nothing reads it.
  CHECK(keys == std::map<int64_t, int>{{0, 1}, {1, 2}});
  for (const auto& node : adapt(forward_only(), adapters).nodes)
    CHECK(node.op != "perigee::dropout");
}

TEST_CASE("a graph that has the adapters stays as it is") {
  const Adapters adapters{.weights = {"fc2.weight"}, .rank = 2};
  for (const auto& graph : {two_layers(), forward_only()}) {
    const auto once = adapt(graph, adapters);
    CHECK(once != graph);
    CHECK(adapt(once, adapters) == once);
    CHECK(refusal(once, "fc2.weight") == "");
  }
  CHECK_THAT(why(adapt(two_layers(), adapters), {.weights = {"fc2.weight"}, .rank = 3}),
             Contains("a weight has one adapter, but fc2.weight has fc2.lora_A.weight already"));
}

TEST_CASE("parameters that are trained beside adapters keep their gradients") {
  const auto graph = adapt(two_layers(),
                           {.weights = {"fc1.weight"}, .trained = {"fc2.weight"}, .rank = 2});
  CHECK(inputs_of(graph) ==
        Names{"fc1.weight frozen", "fc1.lora_A.weight", "fc1.lora_B.weight", "fc2.weight", "x"});
  CHECK(gradients_of(graph) == Names{"fc2.weight", "fc1.lora_A.weight", "fc1.lora_B.weight"});
  CHECK_THAT(
      why(two_layers(), {.weights = {"fc1.weight"}, .trained = {"fc3.weight"}}),
      Contains("a parameter that is trained has a gradient, but fc3.weight is not a parameter of "
               "the model"));
}

TEST_CASE("a weight that an op other than a linear layer reads is refused by name") {
  auto graph = two_layers();
  const auto w = graph.find_input("fc2.weight")->value;
  const auto rows = graph.add_node("aten::relu", {{"self", w}}, {graph.type(w)}, "tied");
  graph.outputs.push_back({Output::Kind::result, "rows", rows[0]});
  CHECK(refusal(graph, "fc2.weight") ==
        "is read by aten::relu in scope \"tied\", which is no linear layer");
  CHECK(refusal(graph, "fc1.weight") == "");
  CHECK_THAT(why(graph, {.weights = {"fc2.weight"}}), Contains("fc2.weight is read by aten::relu"));
}

TEST_CASE("weights without a gradient, with other dims and of unknown names are refused") {
  auto graph = two_layers();
  graph.inputs[1].trainable = false;
  CHECK(refusal(graph, "fc2.weight") == "is frozen by the model (requires_grad is off)");
  graph.add_input(Input::Kind::parameter, "experts.weight", {DType::float32, {4, 8, 8}});
  graph.add_input(Input::Kind::parameter, "norm.weight", {DType::float32, {8}});
  graph.add_input(Input::Kind::parameter, "unused.weight", {DType::float32, {8, 8}});
  CHECK_THAT(refusal(graph, "experts.weight"), Contains("weights of stacked experts"));
  CHECK_THAT(refusal(graph, "norm.weight"), Contains("has 1 dim"));
  CHECK(refusal(graph, "unused.weight") == "is read by no linear layer");
  CHECK_THAT(why(graph, {.weights = {"fc.weight"}}),
             Contains("an adapted weight is a parameter of the model, but got \"fc.weight\", did "
                      "you mean"));
}

TEST_CASE("the scale is alpha / rank, with rslora alpha / sqrt(rank)") {
  CHECK(Adapters{.rank = 4, .alpha = 6}.scale() == 1.5);
  CHECK(Adapters{.rank = 4, .alpha = 6, .rslora = true}.scale() == 3);
}

TEST_CASE("A is uniform within 1 / sqrt(in) at first, and B zero") {
  const Adapters adapters{.weights = {"fc1.weight", "fc2.weight"}, .rank = 2};
  const auto graph = adapt(two_layers(), adapters);
  const auto init = with_first_values({}, graph, adapters);
  verify(init);
  REQUIRE(init.outputs.size() == 4);
  const auto& a = init.nodes[init.values[init.outputs[2].value.index].producer];
  CHECK(init.outputs[2].name == "fc2.lora_A.weight");
  CHECK(a.op == "perigee::random");
  CHECK(a.get<double>("high", 0) == 0.25);
  CHECK(a.get<double>("low", 0) == -0.25);
  CHECK(a.get<int64_t>("key", -1) == 1);
  CHECK(init.nodes[init.values[init.outputs[3].value.index].producer].op == "perigee::full");
}

}  // namespace perigee::graph
