// Ops and modules that cannot be captured are refused with a message; later captures work.
#include <torch/nn.h>

#include <thread>

#include "base/error.h"
#include "tests/capture/layers.h"

namespace nn = torch::nn;
namespace F = torch::nn::functional;

namespace perigee::test {
namespace {

struct Refused {
  std::string name, message;
  std::function<at::Tensor(const at::Tensor& x, const at::Tensor& y)> run;
};

// Options of layers, and code, whose work depends on values.
const std::vector<Refused>& refused() {
  static const std::vector<Refused> list = {
      {"Embedding with max_norm", "aten::embedding_renorm",
       [](auto x, auto) {
         return F::embedding(torch::tensor({1, 2}), x, F::EmbeddingFuncOptions().max_norm(1.0));
       }},
      {"packed sequences", "lengths",
       [](auto x, auto) {
         return nn::utils::rnn::pack_padded_sequence(x.unsqueeze(2), torch::tensor({3, 2, 1, 1}))
             .data();
       }},
      {"item()", "steers the model",
       [](auto x, auto y) { return y.sum().template item<double>() > 0 ? x.sum() : x.mean(); }},
      {"a tensor as a condition", "steers the model",
       [](auto x, auto y) { return (y > 0).any().template item<bool>() ? x.sum() : x.mean(); }},
      {"equal()", "steers the model",
       [](auto x, auto y) { return torch::equal(x, y) ? x.sum() : x.mean(); }},
      {"allclose()", "steers the model",
       [](auto x, auto y) { return torch::allclose(x, y) ? x.sum() : x.mean(); }},
      {"masked_select", "shape depends on values",
       [](auto x, auto y) { return x.masked_select(y > 0).sum(); }},
      {"unique", "shape depends on values",
       [](auto x, auto y) { return x.sum() * std::get<0>(at::_unique2(y)).size(0); }},
      {"a mask as index", "a mask as index", [](auto x, auto y) { return x.index({y > 0}).sum(); }},
      {"nonzero", "shape depends on values", [](auto x, auto) { return x * x.nonzero().sum(); }},
      {"a random permutation", "aten::randperm",
       [](auto x, auto) { return x.index({torch::randperm(3)}).sum(); }},
      {"a Poisson draw", "random numbers must be",
       [](auto x, auto) { return torch::poisson(x.detach().abs()).sum() * x.sum(); }},
      {"overlapping strides", "as_strided must equal a chain of views",
       [](auto x, auto) {
         return (x * 1).as_strided({3, 3}, {1, 1}).sum();
       }},
      {"an op without a shape function", "every op needs a shape function, but aten::linalg_eig",
       [](auto x, auto) {
         return torch::real(std::get<0>(torch::linalg_eig(x.matmul(x.t())))).sum();
       }},
  };
  return list;
}

// Arguments that an op cannot take.
const std::vector<Refused>& wrong_arguments() {
  static const std::vector<Refused> list = {
      {"a layer norm of other dims", "normalized_shape is the input's last dims, but got [3]",
       [](auto x, auto) { return torch::layer_norm(x, {3}).sum(); }},
      {"a layer norm of no dims", "normalized_shape is the input's last dims, but got []",
       [](auto x, auto) { return torch::layer_norm(x, {}).sum(); }},
      {"a layer norm with a weight of another size", "layer_norm's weight must be",
       [](auto x, auto) {
         return torch::layer_norm(x, {x.size(-1)}, torch::ones({x.size(-1) + 1}, x.options()))
             .sum();
       }},
      {"a convolution without a stride", "stride of a convolution must be at least 1, but got [0]",
       [](auto x, auto) {
         return torch::conv1d(x.unsqueeze(1), torch::ones({1, 1, 1}, x.options()), {}, 0).sum();
       }},
      {"unfold without a stride", "stride of im2col must be at least 1",
       [](auto x, auto) { return torch::im2col(x.unsqueeze(0), 2, 1, 0, 0).sum(); }},
      {"pixels shuffled by 0", "factor of pixel_shuffle must be at least 1",
       [](auto x, auto) { return torch::pixel_shuffle(x.unsqueeze(0), 0).sum(); }},
      {"attention with a dropout of 2", "dropout probability lies in [0, 1], but got 2",
       [](auto x, auto) { return torch::scaled_dot_product_attention(x, x, x, {}, 2.0).sum(); }},
      {"causal attention with a mask", "attention takes a mask or is causal, but got both",
       [](auto x, auto) {
         return torch::scaled_dot_product_attention(x, x, x, torch::zeros({3, 3}, x.options()), 0.0,
                                                    true)
             .sum();
       }},
      {"a label smoothing of 1.5", "label smoothing lies in [0, 1], but got 1.5",
       [](auto x, auto) {
         return torch::cross_entropy_loss(x, torch::tensor({0, 1, 2}), {}, 1, -100, 1.5);
       }},
      {"cross entropy with too few weights",
       "class weights are [4], one of each class, but got [3]",
       [](auto x, auto) {
         return torch::cross_entropy_loss(x, torch::tensor({0, 1, 2}),
                                          torch::ones({3}, x.options()));
       }},
      {"nll with a matrix of weights", "class weights are [4], one of each class, but got [1, 4]",
       [](auto x, auto) {
         return torch::nll_loss(x, torch::tensor({0, 1, 2}), torch::ones({1, 4}, x.options()));
       }},
      {"cross entropy with an unknown reduction",
       "reduction must be 0 (none), 1 (mean) or 2 (sum), but aten::cross_entropy_loss has 7",
       [](auto x, auto) {
         return torch::cross_entropy_loss(x, torch::tensor({0, 1, 2}), {}, 7);
       }},
      {"batch norm with statistics of another size", "statistics, weight and bias of [c], but got",
       [](auto x, auto) {
         const auto few = torch::zeros({3}, x.options());
         return torch::batch_norm(x, {}, {}, few, few, false, 0.1, 1e-5, false).sum();
       }},
  };
  return list;
}

}  // namespace

std::vector<Layer> refused_layers() {
  using Tensors = std::vector<at::Tensor>;
  nn::AdaptiveLogSoftmaxWithLoss adaptive(nn::AdaptiveLogSoftmaxWithLossOptions(4, 10, {3}));
  adaptive->to(torch::kFloat64);
  return {
      layer<4>("CTCLoss", nn::CTCLoss(),
               {normal({3, 2, 4}).log_softmax(2), torch::ones({2, 2}, torch::kLong),
                torch::full({2}, 3, torch::kLong), torch::full({2}, 2, torch::kLong)}),
      {"AdaptiveLogSoftmaxWithLoss",
       adaptive.ptr(),
       {normal({3, 4}), torch::tensor({1, 4, 9})},
       [adaptive](const Tensors& in) mutable -> Tensors {
         return {adaptive->forward(in[0], in[1]).output};
       }},
  };
}

TEST_CASE("layer classes whose work depends on values are refused with a message") {
  for (const auto& layer : refused_layers()) {
    INFO(layer.name);
    const auto model = model_of(layer);
    CHECK_THROWS_WITH(
        capture(*model.module, model.batch, model.forward),
        Catch::Contains(layer.name == "CTCLoss" ? "aten::_ctc_loss" : "shape depends on"));
  }
}

TEST_CASE("ops that depend on values are refused by name and scope") {
  struct Net : nn::Module {
    at::Tensor w = register_parameter("w", normal({3, 4}));
  } net;
  const Batch batch{{"y", normal({3, 4})}};
  for (const auto& test : refused()) {
    INFO(test.name);
    const auto run = [&](const Batch& b) {
      const auto scope = perigee::scope("here");
      return Result{test.run(net.w, b.at("y"))};
    };
    CHECK_THROWS_WITH(capture(net, batch, run),
                      Catch::Contains(test.message) && Catch::Contains("\"here\""));
    // A later capture works.
    check_parity(net, batch, [&](const Batch& b) { return Result{(net.w * b.at("y")).sum()}; });
  }
}

TEST_CASE("arguments that an op cannot take are refused by name") {
  struct Net : nn::Module {
    at::Tensor w = register_parameter("w", normal({3, 4}));
  } net;
  const Batch batch{{"y", normal({3, 4})}};
  for (const auto& test : wrong_arguments()) {
    INFO(test.name);
    const auto run = [&](const Batch& b) { return Result{test.run(net.w, b.at("y"))}; };
    CHECK_THROWS_WITH(capture(net, batch, run), Catch::Contains(test.message));
  }
  const auto named = [&](const Batch& b) {
    const auto sum = (net.w * b.at("y")).sum();
    return Result{sum, {{"loss", sum}}};
  };
  CHECK_THROWS_WITH(capture(net, batch, named), Catch::Contains("give the model's result another"));
}

TEST_CASE("a running mean without momentum is refused because it counts batches") {
  nn::BatchNorm1d norm(nn::BatchNorm1dOptions(4).momentum(torch::nullopt));
  CHECK_THROWS_WITH(capture(*norm, {{"x", torch::zeros({3, 4})}},
                            [&](const Batch& b) { return Result{norm(b.at("x")).sum()}; }),
                    Catch::Contains("steers the model"));
}

TEST_CASE("a loss must be one number that depends on a parameter") {
  nn::Linear net(4, 2);
  const Batch batch{{"x", torch::zeros({3, 4})}};
  const auto loss = [&](std::function<at::Tensor(at::Tensor)> run) {
    return [&net, run](const Batch& b) { return Result{run(net(b.at("x")))}; };
  };
  CHECK_THROWS_WITH(capture(*net, batch, loss([](auto) { return at::Tensor(); })),
                    Catch::Contains("the model gives none"));
  CHECK_THROWS_WITH(capture(*net, batch, loss([](auto y) { return y; })),
                    Catch::Contains("one floating number, but got Float[3, 2]"));
  CHECK_THROWS_WITH(capture(*net, batch, loss([](auto y) { return y.detach().sum(); })),
                    Catch::Contains("depends on a parameter"));
  CHECK_THROWS_WITH(capture(*net, batch, loss([](auto) { return torch::zeros({}); })),
                    Catch::Contains("depends on a parameter"));
}

TEST_CASE("writes to tensors that are not buffers are refused") {
  struct Net : nn::Module {
    nn::Linear linear{4, 4};
    at::Tensor seen = torch::zeros({4});
    Net() { register_module("linear", linear); }
  } net;
  const Batch batch{{"x", torch::zeros({3, 4})}};
  CHECK_THROWS_WITH(capture(net, batch,
                            [&](const Batch& b) {
                              net.seen.add_(b.at("x").sum(0));
                              return Result{net.linear(b.at("x")).sum()};
                            }),
                    Catch::Contains("register_buffer"));
  CHECK_THROWS_WITH(capture(net, batch,
                            [&](const Batch& b) {
                              net.seen.add_(1);
                              return Result{net.linear(b.at("x")).sum()};
                            }),
                    Catch::Contains("register_buffer"));
  CHECK(net.seen.sum().item<double>() == 0);
  CHECK_THROWS_WITH(capture(net, batch,
                            [&](const Batch& b) {
                              at::NoGradGuard no_grad;
                              net.linear->weight.mul_(0.5);
                              at::AutoGradMode grad(true);
                              return Result{net.linear(b.at("x")).sum()};
                            }),
                    Catch::Contains("\"linear.weight\""));
}

TEST_CASE("a tensor kept from an earlier capture is refused") {
  nn::Linear net(4, 4);
  at::Tensor kept;
  const auto run = [&](const Batch& b) {
    const auto y = kept.defined() ? net(b.at("x")) + kept : net(b.at("x"));
    kept = y.detach();
    return Result{y.sum()};
  };
  const Batch batch{{"x", torch::zeros({3, 4})}};
  capture(*net, batch, run);
  CHECK_THROWS_WITH(capture(*net, batch, run), Catch::Contains("an earlier or outer capture"));
  CHECK_THROWS_WITH(kept + 1, Catch::Contains("only good inside"));
}

TEST_CASE("an exception of the model is reported with its text") {
  nn::Linear net(4, 4);
  CHECK_THROWS_WITH(capture(*net, {{"x", torch::zeros({3, 5})}},
                            [&](const Batch& b) { return Result{net(b.at("x")).sum()}; }),
                    Catch::Contains("3x5 and 4x4"));
  CHECK_THROWS_WITH(capture(*net, {{"x", torch::zeros({3, 5})}},
                            [](const Batch&) -> Result { throw std::runtime_error("my own"); }),
                    Catch::Contains("my own"));
}

TEST_CASE("captures nest, repeat and run from several threads") {
  const auto once = [](nn::Linear net) {
    const Batch batch{{"x", torch::zeros({3, net->options.in_features()}, torch::kFloat64)}};
    const auto loss = [&](const Batch& b) { return Result{net(b.at("x")).square().sum()}; };
    return graph::structural_hash(capture(*net, batch, loss).graph);
  };
  const auto linear = [](int64_t width) {
    nn::Linear net(width, width);
    net->to(torch::kFloat64);
    return net;
  };
  const auto outer = linear(4), inner = linear(5);
  const auto four = once(outer), five = once(inner);
  CHECK(once(linear(4)) == four);

  std::string nested;
  auto net = outer;
  const auto captured = capture(*net, {{"x", torch::zeros({3, 4}, torch::kFloat64)}},
                                [&](const Batch& b) {
                                  const auto y = net(b.at("x"));
                                  nested = once(inner);
                                  return Result{y.square().sum()};
                                });
  CHECK(nested == five);
  CHECK(graph::structural_hash(captured.graph) == four);

  std::vector<std::string> hashes(4);
  std::vector<std::thread> threads;
  for (auto& hash : hashes) threads.emplace_back([&] { hash = once(linear(4)); });
  for (auto& thread : threads) thread.join();
  for (const auto& hash : hashes) CHECK(hash == four);
}

}  // namespace perigee::test
