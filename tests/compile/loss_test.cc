// Losses that can be split into microbatches, and those that cannot.
#include <catch2/catch.hpp>

#include "shard/loss/classify_loss.h"
#include "tests/compile/support.h"

using namespace perigee;
using namespace perigee::graph;
using compile::mlp;
using shard::classify_loss;
using shard::LossKind;

namespace {

// Classifies the loss f(graph, loss, per-sample values [8, 16]).
template <class F>
LossKind kind(F f) {
  Graph g = mlp({});
  ValueId samples;
  for (const auto& node : g.nodes) {
    if (node.op == "aten::sub.Tensor") samples = node.outputs[0];
  }
  g.outputs[0].value = f(g, g.outputs[0].value, samples);
  return classify_loss(g).kind;
}

ValueId scalar(Graph& g, std::string op, std::vector<std::pair<std::string, Arg>> args) {
  return g.add_node(std::move(op), std::move(args), {{DType::float32, {}}})[0];
}

}  // namespace

TEST_CASE("a loss is classified as a mean, a sum or a mixture of both") {
  using G = Graph&;
  using V = ValueId;
  CHECK(kind([](G, V loss, V) { return loss; }) == LossKind::mean);
  CHECK(kind([](G g, V, V s) { return scalar(g, "aten::sum", {{"self", s}}); }) == LossKind::sum);
  CHECK(kind([](G g, V, V s) {
          const auto sum = scalar(g, "aten::sum", {{"self", s}});
          return scalar(g, "aten::div.Scalar", {{"self", sum}, {"other", int64_t{8}}});
        }) == LossKind::mean);
  CHECK(kind([](G g, V, V s) {
          const auto sum = scalar(g, "aten::sum", {{"self", s}});
          return scalar(g, "aten::mul.Scalar", {{"self", sum}, {"other", 0.5}});
        }) == LossKind::sum);
  CHECK(kind([](G g, V loss, V s) {
          const auto sum = scalar(g, "aten::sum", {{"self", s}});
          return scalar(g, "aten::add.Tensor", {{"self", loss}, {"other", sum}});
        }) == LossKind::mixed);
  CHECK(kind([](G g, V, V s) {
          const auto norm = scalar(g, "aten::sum", {{"self", s}});
          return scalar(g, "aten::sqrt", {{"self", norm}});
        }) == LossKind::mixed);
  // A penalty on weights has the same value in every microbatch.
  const auto penalized = [](std::string reduce) {
    return kind([&](G g, V, V s) {
      const auto loss = scalar(g, reduce, {{"self", s}});
      const auto penalty = scalar(g, "aten::sum",
                                  {{"self", g.find_input("layer.0.weight")->value}});
      return scalar(g, "aten::add.Tensor", {{"self", loss}, {"other", penalty}});
    });
  };
  CHECK(penalized("aten::mean") == LossKind::mean);
  CHECK(penalized("aten::sum") == LossKind::mixed);
}

TEST_CASE("an op that couples samples is reported, also in a loss of means only") {
  const auto of = [](auto f) {
    Graph g = mlp({});
    ValueId samples;
    for (const auto& node : g.nodes) {
      if (node.op == "aten::sub.Tensor") samples = node.outputs[0];
    }
    g.outputs[0].value = f(g, g.outputs[0].value, samples);
    return classify_loss(g);
  };
  using G = Graph&;
  using V = ValueId;
  const auto plain = of([](G, V loss, V) { return loss; });
  CHECK(plain.coupling.empty());
  // A balance loss: the product of two means.
  const auto product = of([](G g, V loss, V) {
    const auto square = scalar(g, "aten::mul.Tensor", {{"self", loss}, {"other", loss}});
    return scalar(g, "aten::add.Tensor", {{"self", loss}, {"other", square}});
  });
  CHECK(product.kind == LossKind::mean);
  CHECK(product.coupling.find("aten::mul.Tensor") == 0);
  // A running sum over the samples couples them.
  const auto running = of([](G g, V, V s) {
    const auto type = g.type(s);
    const auto along = g.add_node("aten::cumsum", {{"self", s}, {"dim", int64_t{0}}}, {type})[0];
    return scalar(g, "aten::mean", {{"self", along}});
  });
  CHECK(running.kind == LossKind::mean);
  CHECK(running.coupling.find("aten::cumsum") == 0);
  // A ratio of sums is not the mean of the microbatches' ratios.
  const auto ratio = of([](G g, V, V s) {
    const auto a = scalar(g, "aten::sum", {{"self", s}});
    return scalar(g, "aten::div.Tensor", {{"self", a}, {"other", a}});
  });
  CHECK(ratio.kind == LossKind::mixed);
}
