#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>

#include "base/error.h"
#include "tests/capture/support.h"

namespace nn = torch::nn;

namespace perigee::test {
namespace {

struct Small : nn::Module {
  nn::Embedding embed{nn::EmbeddingOptions(20, 4).padding_idx(3)};
  nn::Linear linear{4, 4};
  nn::LSTM lstm{nn::LSTMOptions(4, 4)};
  nn::LayerNorm norm{nn::LayerNormOptions({4})};
  at::Tensor scaled, table, eye, orthogonal;
  Small() {
    register_module("embed", embed);
    register_module("linear", linear);
    register_module("lstm", lstm);
    register_module("norm", norm);
    scaled = register_parameter("scaled", torch::randn({50, 40}) * 0.02);
    eye = register_parameter("eye", torch::empty({4, 4}));
    nn::init::eye_(eye);
    orthogonal = register_parameter("orthogonal", nn::init::orthogonal_(torch::empty({6, 4})));
    {
      at::NoGradGuard no_grad;
      linear->weight.uniform_(-3, 3).clamp_(-1, 1);
      linear->bias.data().fill_(2);
    }
    table = torch::arange(4).to(torch::kFloat32) * 0.5;
  }
  at::Tensor forward(const at::Tensor& tokens) {
    const auto x = std::get<0>(lstm(norm(linear(embed(tokens)))));
    return (x * table).matmul(eye) * scaled.sum() * orthogonal.mean();
  }
};

Captured capture_small(Small& net) {
  return capture(net, {{"tokens", torch::zeros({2, 3}, torch::kLong)}}, [&](const Batch& b) {
    return Result{net.forward(b.at("tokens")).square().sum()};
  });
}

}  // namespace

TEST_CASE("a deferred module records how its parameters are initialised") {
  const auto net = deferred<Small>();
  CHECK(net->linear->weight.sizes() == at::IntArrayRef({4, 4}));
  CHECK(net->linear->weight.requires_grad());
  CHECK(net->linear->weight.is_cpu());
  const auto captured = capture_small(*net);
  graph::verify(captured.init);
  const auto values = exec::evaluate(captured.init, {}, {.seed = 5});
  for (const auto& p : net->named_parameters()) {
    INFO(p.key());
    REQUIRE(values.contains(p.key()));
    CHECK(values.at(p.key()).sizes() == p.value().sizes());
  }
  CHECK(values.at("embed.weight")[3].abs().sum().item<float>() == 0);
  CHECK(values.at("embed.weight").std().item<float>() == Approx(1).margin(0.25));
  CHECK(values.at("linear.weight").abs().max().item<float>() == 1);
  CHECK(torch::equal(values.at("linear.bias"), torch::full({4}, 2.f)));
  CHECK(torch::equal(values.at("norm.weight"), torch::ones({4})));
  CHECK(torch::equal(values.at("eye"), torch::eye(4)));
  CHECK(values.at("scaled").std().item<float>() == Approx(0.02).margin(0.002));
  const auto q = values.at("orthogonal");
  CHECK(torch::allclose(q.t().matmul(q), torch::eye(4), 1e-5, 1e-5));
  // Values depend on the seed only.
  const auto again = exec::evaluate(captured.init, {}, {.seed = 5});
  const auto other = exec::evaluate(captured.init, {}, {.seed = 6});
  CHECK(torch::equal(values.at("scaled"), again.at("scaled")));
  CHECK(!torch::equal(values.at("scaled"), other.at("scaled")));
}

TEST_CASE("a deferred module and one with memory have the same graph") {
  const auto net = deferred<Small>();
  Small with_memory;
  const auto a = capture_small(*net), b = capture_small(with_memory);
  CHECK(b.init.outputs.empty());
  // The two differ in the table only: computed in one, a constant in the other.
  CHECK(a.graph.outputs.size() == b.graph.outputs.size());
  CHECK(a.graph.inputs.size() + 1 == b.graph.inputs.size());
}

TEST_CASE("a module of deferred modules has one init graph") {
  struct Pair : nn::Module {
    std::shared_ptr<nn::LinearImpl> a, b;
    Pair(std::shared_ptr<nn::LinearImpl> first, std::shared_ptr<nn::LinearImpl> second)
        : a(std::move(first)), b(std::move(second)) {
      register_module("a", a);
      register_module("b", b);
    }
  } pair(deferred<nn::LinearImpl>(64, 64), deferred<nn::LinearImpl>(64, 64));
  const auto captured = capture(pair, {{"x", torch::zeros({2, 64})}}, [&](const Batch& batch) {
    return Result{pair.b->forward(pair.a->forward(batch.at("x"))).sum()};
  });
  graph::verify(captured.init);
  const auto values = exec::evaluate(captured.init, {});
  CHECK(values.size() == 4);
  CHECK(!torch::equal(values.at("a.weight"), values.at("b.weight")));
}

TEST_CASE("reading a value of a deferred module is an error") {
  const auto net = deferred<nn::LinearImpl>(4, 4);
  CHECK_THROWS_WITH(net->weight.sum(), Catch::Contains("perigee::deferred"));
  CHECK_THROWS_WITH(net->forward(torch::zeros({2, 4})), Catch::Contains("perigee::deferred"));
}

TEST_CASE("an initialiser that depends on values is refused") {
  struct Sparse : nn::Module {
    Sparse() { register_parameter("w", nn::init::sparse_(torch::empty({8, 8}), 0.5)); }
  };
  CHECK_THROWS_WITH(deferred<Sparse>(), Catch::Contains("[capture]"));
  struct Throws : nn::Module {
    Throws() { throw std::runtime_error("no such width"); }
  };
  CHECK_THROWS_WITH(deferred<Throws>(), Catch::Contains("no such width"));
  CHECK(deferred<nn::LinearImpl>(2, 2)->weight.numel() == 4);
}

}  // namespace perigee::test
