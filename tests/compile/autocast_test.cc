// Mixed precision in hand-made graphs and their programs.
#include "compile/graph/autocast.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "compile/gradients/loss_scale.h"
#include "tests/compile/support.h"

using namespace perigee;
using namespace perigee::compile;
using Catch::Contains;
using graph::DType;

namespace {

graph::Graph cast(const graph::Graph& graph, plan::Precision precision) {
  auto plan = data_parallel(graph, 1);
  plan.precision = std::move(precision);
  return autocast(graph, plan);
}

int count_ops(const graph::Graph& graph, const std::string& op, DType type) {
  int n = 0;
  for (const auto& node : graph.nodes) {
    n += node.op == op && graph.type(node.outputs[0]).dtype == type;
  }
  return n;
}

}  // namespace

TEST_CASE("products compute in the low precision, sums in float32, and each weight is cast once") {
  const auto before = mlp({});
  const auto after = graph::eliminate_dead_code(cast(before, {.dtype = DType::bfloat16}));
  graph::verify(after);
  CHECK(count_ops(after, "aten::mm", DType::bfloat16) == 5);
  CHECK(count_ops(after, "aten::mm", DType::float32) == 0);
  // The bias of a linear layer is added in the type of its product.
  CHECK(count_ops(after, "aten::add.Tensor", DType::bfloat16) == 2);
  CHECK(count_ops(after, "aten::sum.dim_IntList", DType::float32) == 2);
  // A weight is cast before its views; the backward pass reads the same cast.
  for (const auto& input : after.inputs) {
    int casts = 0;
    for (const auto& node : after.nodes) {
      bool reads = false;
      node.each_operand([&](graph::ValueId v) { reads |= v == input.value; });
      casts += reads && node.op == "perigee::cast";
    }
    const bool weight = input.name.ends_with("weight");
    INFO(input.name);
    const bool bias = input.name.ends_with("bias");
    CHECK(casts == (weight || bias || input.name == "x" ? 1 : 0));
  }
  for (size_t o = 0; o < before.outputs.size(); ++o) {
    CHECK(after.type(after.outputs[o].value) == before.type(before.outputs[o].value));
  }
  CHECK(cast(before, {}) == before);
}

TEST_CASE("lists and scopes of the plan take precedence") {
  const auto graph = mlp({});
  const auto denied = cast(
      graph, {.dtype = DType::float16, .allow = {"aten::gelu"}, .deny = {"aten::mm"}});
  CHECK(count_ops(denied, "aten::mm", DType::float16) == 0);
  CHECK(count_ops(denied, "aten::gelu", DType::float16) == 2);
  const auto wide_bias = cast(graph, {.dtype = DType::float16, .deny = {"aten::add.Tensor"}});
  CHECK(count_ops(wide_bias, "aten::mm", DType::float16) == 5);
  CHECK(count_ops(wide_bias, "aten::add.Tensor", DType::float32) == 2);
  const auto promoted = cast(graph, {.dtype = DType::float16, .promote = {"aten::mm"}});
  CHECK(count_ops(promoted, "aten::mm", DType::float16) == 0);
  const auto within = cast(graph, {.dtype = DType::float16, .scopes = {"layer.1"}});
  for (const auto& node : within.nodes) {
    const auto dtype = within.type(node.outputs[0]).dtype;
    if (node.op == "aten::mm") CHECK((dtype == DType::float16) == (node.scope == "layer.1"));
    if (node.scope == "layer.0") CHECK(dtype == DType::float32);
  }
}

// The product x w as logits, their cross entropy and its gradient.
graph::Graph classifier(bool weighted) {
  graph::Graph g;
  const graph::TensorType x{DType::float32, {8, 4}}, w{DType::float32, {4, 6}},
      logits{DType::float32, {8, 6}}, rows{DType::float32, {8}};
  g.scopes.push_back({"", "Net"});
  const auto in = g.add_input(graph::Input::Kind::data, "x", x);
  const auto labels = g.add_input(graph::Input::Kind::data, "labels", {DType::int64, {8}});
  const auto weight = g.add_input(graph::Input::Kind::parameter, "w", w);
  const auto classes = g.add_input(graph::Input::Kind::buffer, "classes", {DType::float32, {6}});
  const auto forward = graph::Phase::forward, backward = graph::Phase::backward;
  const auto y = g.add_node("aten::mm", {{"self", in}, {"mat2", weight}}, {logits}, "", forward)[0];
  std::vector<std::pair<std::string, graph::Arg>> args = {{"logits", y}, {"target", labels}};
  if (weighted) args.emplace_back("weight", classes);
  const auto loss = g.add_node("perigee::cross_entropy", args, {rows, rows}, "", forward);
  g.outputs.push_back(
      {graph::Output::Kind::loss, "loss",
       g.add_node("aten::sum", {{"self", loss[0]}}, {{DType::float32, {}}}, "", forward)[0]});
  const auto seed = g.add_node("perigee::full", {{"value", 1.0}}, {rows}, "", backward)[0];
  args.insert(args.begin(), {"grad", seed});
  args.emplace_back("logsumexp", loss[1]);
  const auto dy = g.add_node("perigee::cross_entropy_backward", args, {logits}, "", backward)[0];
  g.nodes.back().forward_node = 1;
  const auto t = g.add_node("aten::t", {{"self", in}}, {{DType::float32, {4, 8}}}, "", backward)[0];
  const auto dw = g.add_node("aten::mm", {{"self", t}, {"mat2", dy}}, {w}, "", backward)[0];
  g.nodes.back().forward_node = 0;
  g.outputs.push_back({graph::Output::Kind::gradient, "w", dw});
  graph::verify(g);
  return g;
}

TEST_CASE("cross entropy computes in float32 from logits in the low precision, without casts") {
  for (const bool weighted : {false, true}) {
    INFO(weighted);
    const auto after = graph::eliminate_dead_code(
        cast(classifier(weighted), {.dtype = DType::bfloat16}));
    graph::verify(after);
    // Weights of classes have the type of the logits: both stay float32.
    const auto logits = weighted ? DType::float32 : DType::bfloat16;
    int read = 0;
    for (const auto& node : after.nodes) {
      if (!node.op.starts_with("perigee::cross_entropy")) continue;
      ++read;
      CHECK(after.type(node.get<graph::ValueId>("logits", {})).dtype == logits);
    }
    CHECK(read == 2);
    CHECK(count_ops(after, "perigee::cross_entropy", DType::float32) == 1);
    CHECK(count_ops(after, "perigee::cross_entropy_backward", logits) == 1);
    CHECK(count_ops(after, "aten::mm", DType::bfloat16) == 2);
    // x, w and the gradient of w; with float32 logits also these and their gradient.
    CHECK(count_ops(after, "perigee::cast", DType::float32) == (weighted ? 2 : 1));
  }
}

TEST_CASE("names of values in a plan are mapped to the graph with casts") {
  const auto graph = mlp({});
  auto plan = data_parallel(graph, 2);
  plan.precision.dtype = DType::bfloat16;
  plan.placements["layer.1/mm.0"] = mesh::parse_placements("S1");
  const auto after = autocast(graph, plan);
  const auto renamed = with_names_of(plan, graph, after);
  const auto names = graph::value_names(after);
  REQUIRE(renamed.placements.size() == 1);
  const auto found = std::find(names.begin(), names.end(), renamed.placements.begin()->first);
  REQUIRE(found != names.end());
  CHECK(graph::value_names(graph)[found - names.begin()] == "layer.1/mm.0");
  // The pin is kept: the product's columns are gathered before the bias.
  const auto count_gathers = [](const Program& program) {
    return count(section(program, "micro"), "comm::all_to_all") +
           count(section(program, "micro"), "comm::all_gather");
  };
  const auto pinned = count_gathers(compiled(graph, plan));
  plan.placements.clear();
  CHECK(pinned > count_gathers(compiled(graph, plan)));
}

TEST_CASE("a precision changes the program's summary, and loss scaling its state") {
  const auto graph = mlp({.layers = 3, .batch = 64, .width = 32});
  const auto plain = data_parallel(graph, 2);
  auto plan = plain;
  plan.precision.dtype = DType::bfloat16;
  CHECK(summary(compiled(graph, plan)) != summary(compiled(graph, plain)));
  const auto program = compiled(graph, plan);
  CHECK(!program.find(Binding::Kind::state, "loss_scale:value"));
  // Parameters stay float32.
  CHECK(program.values[program.find(Binding::Kind::parameter, "layer.0.weight")->value.index]
            .type.dtype == DType::float32);

  plan.precision.loss_scale = {.kind = plan::LossScale::Kind::dynamic, .init_scale = 8};
  const auto scaled = compiled(graph, plan);
  const auto* scale = scaled.find(Binding::Kind::state, "loss_scale:value");
  REQUIRE(scale);
  CHECK(scale->data == std::string("\0\0\0\x41", 4));
  CHECK(count(section(scaled, "step"), "perigee::update_loss_scale_") == 1);
  CHECK(summary(scaled) != summary(program));
  CHECK(!scaled.find(Binding::Kind::constant, kLossScale));
  // An evaluation has no loss scale.
  const auto evaluation = compiled(graph, plan, {.evaluation = true});
  CHECK(!evaluation.find(Binding::Kind::state, "loss_scale:value"));
}

TEST_CASE("a loss whose backward pass does not start with ones cannot be scaled") {
  auto graph = mlp({});
  for (auto& node : graph.nodes) {
    if (node.op == "perigee::full") node.args = {{"value", 2.0}};
  }
  CHECK_THROWS_WITH(scale_loss(graph, {.kind = plan::LossScale::Kind::fixed}),
                    Contains("starts with ones"));
}
