// Layers that draw random numbers: eager autograd with the graph's draws, and properties of
// the draws.
#include <torch/nn.h>

#include "tests/capture/layers.h"
#include "tests/capture/support_draws.h"

namespace nn = torch::nn;

namespace perigee::test {

std::vector<Layer> random_layers() {
  using Tensors = std::vector<at::Tensor>;
  const auto recurrent = [](std::string name, auto holder) {
    holder->to(torch::kFloat64);
    return Layer{std::move(name),
                 holder.ptr(),
                 {normal({3, 2, 4})},
                 [holder](const Tensors& in) mutable -> Tensors {
                   return {std::get<0>(holder->forward(in[0]))};
                 }};
  };
  nn::MultiheadAttention attention(nn::MultiheadAttentionOptions(8, 2).dropout(0.3));
  attention->to(torch::kFloat64);
  const auto encoder = nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0.3);
  const auto decoder = nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(12).dropout(0.3);
  const auto whole = nn::TransformerOptions(8, 2, 2, 2).dim_feedforward(12).dropout(0.3);
  return {
      layer<1>("Dropout", nn::Dropout(0.25), {normal({5, 6})}),
      layer<1>("Dropout2d", nn::Dropout2d(0.5), {normal({4, 5, 3, 2})}),
      layer<1>("Dropout3d", nn::Dropout3d(0.5), {normal({4, 5, 3, 2, 2})}),
      layer<1>("AlphaDropout", nn::AlphaDropout(0.5), {normal({5, 6})}),
      layer<1>("FeatureAlphaDropout", nn::FeatureAlphaDropout(0.5), {normal({4, 5, 6})}),
      layer<1>("RReLU", nn::RReLU(), {normal({5, 6})}),
      layer<1>("FractionalMaxPool2d drawn",
               nn::FractionalMaxPool2d(nn::FractionalMaxPool2dOptions(2).output_size(3)),
               {normal({2, 3, 7, 7})}),
      layer<1>("FractionalMaxPool3d drawn",
               nn::FractionalMaxPool3d(nn::FractionalMaxPool3dOptions(2).output_size(3)),
               {normal({2, 3, 7, 7, 7})}),
      recurrent("RNN with dropout", nn::RNN(nn::RNNOptions(4, 5).num_layers(2).dropout(0.3))),
      recurrent("GRU with dropout", nn::GRU(nn::GRUOptions(4, 5).num_layers(2).dropout(0.3))),
      recurrent("LSTM with dropout", nn::LSTM(nn::LSTMOptions(4, 5).num_layers(2).dropout(0.3))),
      {"MultiheadAttention with dropout",
       attention.ptr(),
       {normal({3, 2, 8})},
       [attention](const Tensors& in) mutable -> Tensors {
         return {std::get<0>(attention->forward(in[0], in[0], in[0]))};
       }},
      layer<1>("TransformerEncoderLayer with dropout", nn::TransformerEncoderLayer(encoder),
               {normal({3, 2, 8})}),
      layer<2>("TransformerDecoderLayer with dropout", nn::TransformerDecoderLayer(decoder),
               {normal({3, 2, 8}), normal({4, 2, 8})}),
      layer<2>("Transformer with dropout", nn::Transformer(whole),
               {normal({3, 2, 8}), normal({4, 2, 8})}),
      {"attention with dropout",
       nullptr,
       {normal({2, 2, 4, 3}), normal({2, 2, 4, 3}), normal({2, 2, 4, 3})},
       [](const Tensors& in) -> Tensors {
         return {at::scaled_dot_product_attention(in[0], in[1], in[2], {}, 0.4, true)};
       }},
  };
}

namespace {

struct Drawn {
  at::Tensor x, y, gradient;  // input, output, d loss / d input
};

// Evaluates a layer of one input; the loss is sum(sin y + y^2 / 2).
Drawn draw(const Layer& layer) {
  const auto model = model_of(layer);
  const auto captured = capture(*model.module, model.batch, model.forward);
  const auto got = evaluate(*model.module, captured, model.batch);
  return {layer.inputs[0], got.at("y0"), got.at("gradient:input0")};
}

bool close(const at::Tensor& a, const at::Tensor& b) { return torch::allclose(a, b, 1e-12, 1e-12); }

// The gradient of the loss is (cos y + y) dy/dx.
bool gradient_is(const Drawn& drawn, const at::Tensor& slope) {
  return close(drawn.gradient, (drawn.y.cos() + drawn.y) * slope);
}

// Returns the share of elements that are true.
double share(const at::Tensor& mask) { return mask.to(torch::kFloat64).mean().item<double>(); }

}  // namespace

TEST_CASE("dropout scales kept values, and its gradient has the same mask") {
  const auto drawn = draw(layer<1>("Dropout", nn::Dropout(0.25), {normal({40, 50})}));
  const auto kept = (drawn.y != 0).to(torch::kFloat64);
  CHECK(share(kept) == Approx(0.75).margin(0.05));
  CHECK(close(drawn.y, drawn.x * kept / 0.75));
  CHECK(gradient_is(drawn, kept / 0.75));
}

TEST_CASE("channel dropout drops whole channels") {
  for (const auto& layer : {layer<1>("Dropout2d", nn::Dropout2d(0.5), {normal({8, 9, 3, 2})}),
                            layer<1>("Dropout3d", nn::Dropout3d(0.5), {normal({8, 9, 3, 2, 2})})}) {
    INFO(layer.name);
    const auto drawn = draw(layer);
    const auto kept = drawn.y != 0;
    const auto channel = kept.flatten(2).select(2, 0);
    CHECK(share(channel) == Approx(0.5).margin(0.2));
    CHECK(torch::equal(kept.flatten(2), channel.unsqueeze(2).expand_as(kept.flatten(2))));
    CHECK(close(drawn.y, drawn.x * kept * 2));
    CHECK(gradient_is(drawn, kept * 2.0));
  }
}

TEST_CASE("alpha dropout sets dropped elements to one value") {
  for (const auto& layer :
       {layer<1>("AlphaDropout", nn::AlphaDropout(0.5), {normal({8, 9, 6})}),
        layer<1>("FeatureAlphaDropout", nn::FeatureAlphaDropout(0.5), {normal({8, 9, 6})})}) {
    INFO(layer.name);
    const auto drawn = draw(layer);
    const double alpha = 1.7580993408473766, p = 0.5;
    const double a = 1 / std::sqrt((alpha * alpha * p + 1) * (1 - p)), b = a * alpha * p;
    const auto kept = (drawn.y - (b - a * alpha)).abs() > 1e-9;
    CHECK(share(kept) == Approx(0.5).margin(0.2));
    CHECK(close(drawn.y, at::where(kept, a * drawn.x + b, at::full_like(drawn.x, b - a * alpha))));
    CHECK(gradient_is(drawn, kept.to(torch::kFloat64) * a));
  }
}

TEST_CASE("RReLU scales negative elements by slopes in its range") {
  const auto drawn = draw(layer<1>("RReLU", nn::RReLU(), {normal({20, 30})}));
  const auto slope = drawn.y / drawn.x;
  const auto negative = slope.masked_select(drawn.x < 0);
  CHECK(negative.min().item<double>() >= 1.0 / 8);
  CHECK(negative.max().item<double>() <= 1.0 / 3);
  CHECK(negative.std().item<double>() > 0.03);
  CHECK(close(slope.masked_select(drawn.x > 0), at::ones({1}, torch::kFloat64)));
  CHECK(gradient_is(drawn, slope));
}

TEST_CASE("layers that draw random numbers equal eager autograd with the same draws") {
  for (const auto& layer : random_layers()) check_layer(layer);
}

TEST_CASE("with other draws, layers that draw random numbers differ from eager autograd") {
  for (const auto& layer : random_layers()) {
    INFO(layer.name);
    const auto model = model_of(layer);
    const auto captured = capture(*model.module, model.batch, model.forward);
    const auto got = evaluate(*model.module, captured, model.batch);
    const ReplayedDraws other(captured.graph, {.seed = 1});
    CHECK(difference(eager(*model.module, model.batch, model.forward), got, 1e-12) != "");
  }
}

TEST_CASE("each random op has a key of its own") {
  nn::Sequential net(nn::Linear(4, 4), nn::Dropout(0.5), nn::Functional([](at::Tensor x) {
                       return x + torch::rand_like(x) + torch::randn({4}) +
                              torch::bernoulli(torch::sigmoid(x));
                     }));
  const auto captured = capture(*net, {{"x", torch::zeros({3, 4})}}, [&](const Batch& b) {
    return Result{net->forward(b.at("x")).sum()};
  });
  std::set<int64_t> keys;
  int forward = 0;
  for (const auto& node : captured.graph.nodes) {
    if (!node.find("key") || node.phase == graph::Phase::backward) continue;
    ++forward;
    keys.insert(node.get<int64_t>("key", -1));
  }
  CHECK(forward == 4);
  CHECK(keys.size() == 4);
}

TEST_CASE(
    "probabilities of 16 bits are compared with finer numbers, and integers have near limits") {
  nn::Linear net(4, 4);
  const auto captured_with = [&](const std::function<at::Tensor(const at::Tensor&)>& noise) {
    return capture(*net, {{"x", torch::zeros({3, 4})}}, [&](const Batch& b) {
      const auto y = net->forward(b.at("x"));
      return Result{(y + noise(y.detach()).to(torch::kFloat)).sum()};
    });
  };
  const auto captured = captured_with(
      [](const at::Tensor& y) { return torch::bernoulli(y.sigmoid().to(torch::kBFloat16)); });
  int drawn = 0;
  for (const auto& node : captured.graph.nodes) {
    if (node.op != "perigee::random") continue;
    CHECK(captured.graph.type(node.outputs[0]).dtype == graph::DType::float32);
    ++drawn;
  }
  CHECK(drawn == 1);
  const auto below = [](int64_t high) {
    return [high](const at::Tensor&) { return torch::randint(0, high, {3, 4}, torch::kLong); };
  };
  CHECK_NOTHROW(captured_with(below(int64_t{1} << 32)));
  CHECK_THROWS_WITH(captured_with(below(int64_t{1} << 40)),
                    Catch::Contains("at most 2^32, but got"));
}

}  // namespace perigee::test
