// The loss of a model in 16 bits, in float32.
#include "compile/graph/widen_loss.h"

#include <catch2/catch.hpp>

#include "compile/compile.h"
#include "tests/compile/support.h"

using namespace perigee;
using namespace perigee::graph;

namespace {

// Mean cross entropy of `dtype` with half of an auxiliary loss, and the gradient of the logits.
Graph cross_entropy(DType dtype) {
  const TensorType logits{dtype, {8, 4}}, rows{dtype, {8}}, scalar{dtype, {}};
  const TensorType wide{DType::float32, {}};
  Graph g;
  g.scopes.push_back({"", "Net"});
  const auto x = g.add_input(Input::Kind::parameter, "x", logits);
  const auto y = g.add_input(Input::Kind::data, "y", {DType::int64, {8}});
  const auto aux = g.add_input(Input::Kind::parameter, "aux", scalar);
  const auto made = g.add_node("perigee::cross_entropy", {{"logits", x}, {"target", y}},
                               {rows, {DType::float32, {8}}});
  const auto one = [&](std::string op, std::vector<std::pair<std::string, Arg>> args,
                       TensorType type, Phase phase = Phase::forward) {
    return g.add_node(std::move(op), std::move(args), {std::move(type)}, "", phase)[0];
  };
  const auto sum = one("aten::sum", {{"self", made[0]}}, scalar);
  const auto count = one("perigee::label_weight", {{"target", y}, {"dtype", DType::float32}}, wide);
  const auto mean = one("aten::div.Tensor", {{"self", sum}, {"other", count}}, wide);
  const auto loss = one("perigee::cast", {{"self", mean}}, scalar);
  const auto half = one("aten::mul.Scalar", {{"self", aux}, {"other", 0.5}}, scalar);
  const auto all = one("aten::add.Tensor", {{"self", loss}, {"other", half}}, scalar);
  const auto ones = one("perigee::full", {{"value", 1.0}}, scalar, Phase::backward);
  const auto each = one("aten::div.Tensor", {{"self", ones}, {"other", count}}, wide,
                        Phase::backward);
  const auto low = one("perigee::cast", {{"self", each}}, scalar, Phase::backward);
  const auto grad = one("perigee::expand", {{"self", low}}, rows, Phase::backward);
  const auto slope = one("perigee::cross_entropy_backward",
                         {{"grad", grad}, {"logits", x}, {"target", y}, {"logsumexp", made[1]}},
                         logits, Phase::backward);
  g.outputs = {{Output::Kind::loss, "loss", all}, {Output::Kind::gradient, "x", slope}};
  verify(g);
  return g;
}

// Returns the lines of the forward pass or of the backward pass, as they are printed.
std::string lines_of(const Graph& g, Phase phase) {
  std::string text;
  for (const auto& node : g.nodes) {
    if (node.phase == phase) text += print(g, node) + "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("a loss in 16 bits is computed in float32 from float32 losses of the samples") {
  for (const auto dtype : {DType::bfloat16, DType::float16}) {
    const auto given = cross_entropy(dtype);
    auto wide = compile::widen_loss(given);
    verify(wide);
    CHECK(lines_of(eliminate_dead_code(wide), Phase::forward) ==
          "%3: float32[8], %4: float32[8] = perigee::cross_entropy(logits=%0, target=%1)   @ "
          "forward\n"
          "%5: float32[] = perigee::label_weight(target=%1, dtype=float32)   @ forward\n"
          "%6: float32[] = aten::sum(self=%3)   @ forward\n"
          "%7: float32[] = aten::div.Tensor(self=%6, other=%5)   @ forward\n"
          "%8: float32[] = perigee::cast(self=%2)   @ forward\n"
          "%9: float32[] = aten::mul.Scalar(self=%8, other=0.5)   @ forward\n"
          "%10: float32[] = aten::add.Tensor(self=%7, other=%9)   @ forward\n");
    // Values keep their numbers, and gradients are computed as before.
    CHECK(lines_of(wide, Phase::backward) == lines_of(given, Phase::backward));
    CHECK(wide.type(wide.outputs[1].value).dtype == dtype);
  }
}

TEST_CASE("losses that others read keep their type") {
  auto given = cross_entropy(DType::bfloat16);
  given.outputs.push_back({Output::Kind::result, "losses", given.nodes[0].outputs[0]});
  const auto wide = compile::widen_loss(given);
  verify(wide);
  CHECK(wide.type(given.nodes[0].outputs[0]).dtype == DType::bfloat16);
  CHECK(lines_of(eliminate_dead_code(wide), Phase::forward)
            .find("aten::sum(self=%3, dtype=float32)") != std::string::npos);
}

TEST_CASE("other ops than sums and arithmetic are followed by a cast") {
  auto given = cross_entropy(DType::bfloat16);
  const auto root = given.add_node("aten::sqrt", {{"self", given.outputs[0].value}},
                                   {{DType::bfloat16, {}}})[0];
  given.outputs[0].value = root;
  const auto wide = compile::widen_loss(given);
  verify(wide);
  const auto& made = wide.nodes[wide.values[wide.outputs[0].value.index].producer];
  CHECK(made.op == "perigee::cast");
  CHECK(made.get<ValueId>("self", {}) == root);
}

TEST_CASE("a loss of float32 or float64 stays as it is") {
  for (const auto dtype : {DType::float32, DType::float64}) {
    const auto given = cross_entropy(dtype);
    CHECK(compile::widen_loss(given) == given);
  }
}
