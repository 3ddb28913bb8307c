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

Program compiled(const graph::Graph& graph, const plan::Plan& plan, StepSpec spec = {}) {
  SyntheticTraces traces;
  auto program = compile::compile(graph, plan, spec, 0, traces);
  verify(program);
  return program;
}

}  // namespace

TEST_CASE("products compute in the low precision, sums in float32, and each weight is cast once") {
  const auto before = mlp({});
  const auto after = graph::eliminate_dead_code(cast(before, {.dtype = DType::bfloat16}));
  graph::verify(after);
  CHECK(count_ops(after, "aten::mm", DType::bfloat16) == 5);
  CHECK(count_ops(after, "aten::mm", DType::float32) == 0);
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
    CHECK(casts == (weight || input.name == "x" ? 1 : 0));
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
  const auto promoted = cast(graph, {.dtype = DType::float16, .promote = {"aten::mm"}});
  CHECK(count_ops(promoted, "aten::mm", DType::float16) == 0);
  const auto within = cast(graph, {.dtype = DType::float16, .scopes = {"layer.1"}});
  for (const auto& node : within.nodes) {
    const auto dtype = within.type(node.outputs[0]).dtype;
    if (node.op == "aten::mm") CHECK((dtype == DType::float16) == (node.scope == "layer.1"));
    if (node.scope == "layer.0") CHECK(dtype == DType::float32);
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
