// Layers that draw random numbers. Their draws cannot be eager's, so each is compared with what it
// must compute given the mask that its result shows, or with its own differences.
#include "tests/capture/support.h"

namespace nn = torch::nn;

namespace perigee::test {
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

TEST_CASE("dropout scales what it keeps, and its gradient has the same mask") {
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

TEST_CASE("alpha dropout sets what it drops to one value") {
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

TEST_CASE("gradients of models with dropout are the slopes of their loss") {
  using Tensors = std::vector<at::Tensor>;
  nn::LSTM lstm(nn::LSTMOptions(4, 5).num_layers(2).dropout(0.3));
  lstm->to(torch::kFloat64);
  const std::vector<Layer> layers = {
      layer<1>("TransformerEncoderLayer",
               nn::TransformerEncoderLayer(
                   nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0.3)),
               {normal({3, 2, 8})}),
      {"LSTM",
       lstm.ptr(),
       {normal({3, 2, 4})},
       [lstm](const Tensors& in) mutable -> Tensors {
         return {std::get<0>(lstm->forward(in[0]))};
       }},
      {"attention",
       nullptr,
       {normal({2, 2, 4, 3}), normal({2, 2, 4, 3}), normal({2, 2, 4, 3})},
       [](const Tensors& in) -> Tensors {
         return {at::scaled_dot_product_attention(in[0], in[1], in[2], {}, 0.4, true)};
       }},
  };
  for (const auto& layer : layers) {
    INFO(layer.name);
    const auto model = model_of(layer);
    const auto captured = capture(*model.module, model.batch, model.forward);
    auto inputs = inputs_of(*model.module, captured, model.batch);
    const auto got = exec::evaluate(captured.graph, inputs);
    const auto direction = normal(layer.inputs[0].sizes());
    const auto loss_at = [&](double step) {
      inputs["input0"] = layer.inputs[0] + step * direction;
      return exec::evaluate(captured.graph, inputs).at("loss").item<double>();
    };
    const double slope = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5;
    CHECK((got.at("gradient:input0") * direction).sum().item<double>() ==
          Approx(slope).epsilon(1e-6));
    // The negative control: without the draws, the loss is another.
    model.module->eval();
    const auto still = capture(*model.module, model.batch, model.forward);
    if (layer.module)
      CHECK(evaluate(*model.module, still, model.batch).at("loss").item<double>() !=
            Approx(got.at("loss").item<double>()));
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

}  // namespace perigee::test
