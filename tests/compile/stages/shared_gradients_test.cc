// Gradients of parameters that several parts of a pipeline use.
#include "compile/stages/shared_gradients.h"

#include <catch2/catch.hpp>

#include "plan/pipeline.h"

using namespace perigee;
using compile::find_shared_gradients;
using compile::redistribute_contributions;
using graph::DType;
using graph::Graph;
using graph::Output;
using graph::Phase;
using graph::TensorType;
using graph::ValueId;

namespace {

using Args = std::vector<std::pair<std::string, graph::Arg>>;

const plan::Pipeline kParts = {.axis = "pipe", .starts = {"b"}};

// A weight that the ops of scopes a and b read; a collective changes the placement of the sum of
// their gradients.
Graph tied(const std::string& collective) {
  Graph graph;
  for (const char* scope : {"", "a", "b"}) graph.scopes.push_back({scope, "Net"});
  const TensorType part{DType::float32, {2, 2}};
  const TensorType whole{DType::float32, {collective == "comm::all_gather" ? 4 : 2, 2}};
  const auto weight = graph.add_input(graph::Input::Kind::parameter, "weight", whole);
  const auto x = graph.add_input(graph::Input::Kind::data, "x", part);
  const auto add = [&](const char* op, Args args, const TensorType& type, const std::string& scope,
                       Phase phase, graph::NodeId forward = -1) {
    const auto made = graph.add_node(op, std::move(args), {type}, scope, phase)[0];
    graph.nodes.back().forward_node = forward;
    return made;
  };
  const auto a = add("aten::mm", {{"self", x}, {"mat2", weight}}, part, "a", Phase::forward);
  const auto b = add("aten::mm", {{"self", a}, {"mat2", weight}}, part, "b", Phase::forward);
  const auto of_b = add("aten::mm", {{"self", b}, {"mat2", a}}, part, "b", Phase::backward, 1);
  const auto back = add("aten::mul.Tensor", {{"self", b}, {"other", b}}, part, "b", Phase::backward,
                        1);
  const auto of_a = add("aten::mm", {{"self", back}, {"mat2", x}}, part, "a", Phase::backward, 0);
  const auto sum = add("aten::add.Tensor", {{"self", of_b}, {"other", of_a}}, part, "a",
                       Phase::backward, 0);
  const auto moved = add(collective.c_str(), {{"self", sum}, {"axis", "tensor"}}, whole, "a",
                         Phase::backward, 0);
  graph.outputs.push_back({Output::Kind::gradient, "weight", moved});
  return graph;
}

std::string op_of(const Graph& graph, ValueId v) {
  return graph.nodes[static_cast<size_t>(graph.values[v.index].producer)].op;
}

}  // namespace

TEST_CASE("each part redistributes its own contribution to a gradient, and sends nothing") {
  for (const std::string collective : {"comm::all_to_all", "comm::all_gather"}) {
    INFO(collective);
    auto graph = tied(collective);
    const std::vector<int> stages = {0, 1};
    CHECK(find_shared_gradients(graph, plan::parts_of(graph, kParts), stages).shares.empty());
    redistribute_contributions(graph, kParts);
    const auto shared = find_shared_gradients(graph, plan::parts_of(graph, kParts), stages);
    REQUIRE(shared.shares.size() == 1);
    const auto& shares = shared.shares.at(0);
    REQUIRE(shares.size() == 2);
    for (const int part : {0, 1}) {
      const auto& contributions = shares.at(part).at(part);
      REQUIRE(contributions.size() == 1);
      CHECK(op_of(graph, contributions[0]) == collective);
    }
    CHECK(op_of(graph, graph.outputs[0].value) == "aten::add.Tensor");
    CHECK(graph.nodes.size() == 8);
    CHECK(graph.outputs[0].name == "weight");
    CHECK(graph.type(graph.outputs[0].value) == graph.type(graph.inputs[0].value));
  }
}

TEST_CASE("a gradient of one part, or of an op that is no mere move, stays as it is") {
  const plan::Pipeline whole = {.axis = "pipe"};
  for (const auto& [collective, pipeline] :
       {std::pair("comm::all_to_all", whole), {"comm::all_reduce", kParts}}) {
    auto graph = tied(collective);
    const auto nodes = graph.nodes.size();
    redistribute_contributions(graph, pipeline);
    CHECK(graph.nodes.size() == nodes);
    CHECK(op_of(graph, graph.outputs[0].value).starts_with("comm::"));
  }
}
