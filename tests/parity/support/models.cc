#include "tests/parity/support/models.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>

#include <algorithm>
#include <map>

#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr int64_t kWidth = 12, kHeads = 3, kVocabulary = 10;

at::Tensor labels(at::IntArrayRef sizes) {
  auto y = at::randint(0, kVocabulary, sizes, at::kLong);
  return y.masked_fill(at::rand(sizes) > 0.8, -100);
}

struct Block : nn::Module {
  nn::LayerNorm norm1{nn::LayerNormOptions({kWidth})}, norm2{nn::LayerNormOptions({kWidth})};
  nn::Linear qkv{kWidth, 3 * kWidth}, out{kWidth, kWidth}, up{kWidth, 4 * kWidth},
      down{4 * kWidth, kWidth};
  nn::Dropout drop{0.2};
  Block() {
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    register_module("qkv", qkv);
    register_module("out", out);
    register_module("up", up);
    register_module("down", down);
    register_module("drop", drop);
  }
  at::Tensor forward(at::Tensor x) {
    const auto b = x.size(0), s = x.size(1);
    const auto p = qkv(norm1(x)).view({b, s, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const auto y = at::scaled_dot_product_attention(p[0], p[1], p[2], {}, 0.1, /*is_causal=*/true);
    x = x + drop(out(y.transpose(1, 2).reshape({b, s, kWidth})));
    return x + drop(down(torch::gelu(up(norm2(x)))));
  }
};

// A GPT with tied embeddings, learnt positions and ignored labels.
struct Gpt : nn::Module {
  nn::Embedding embed{kVocabulary, kWidth}, positions{8, kWidth};
  std::shared_ptr<Block> a = std::make_shared<Block>(), b = std::make_shared<Block>();
  Gpt() {
    register_module("embed", embed);
    register_module("positions", positions);
    register_module("a", a);
    register_module("b", b);
    to(at::kDouble);
  }
  at::Tensor loss(const Batch& batch) {
    const auto tokens = batch.at("tokens");
    auto x = embed(tokens) + positions(torch::arange(tokens.size(1), tokens.options()));
    x = b->forward(a->forward(x));
    return F::cross_entropy(at::linear(x, embed->weight).flatten(0, 1),
                            batch.at("labels").flatten());
  }
};

Model gpt(int64_t rows) {
  auto net = std::make_shared<Gpt>();
  return {net,
          {{"tokens", at::randint(0, kVocabulary, {rows, 5}, at::kLong)},
           {"labels", labels({rows, 5})}},
          [net](const Batch& b) { return Result{net->loss(b)}; }};
}

// Convolutions with batch norm, group norm, pooling and a residual.
struct Images : nn::Module {
  nn::Conv2d conv1{nn::Conv2dOptions(3, 6, 3).padding(1)},
      conv2{nn::Conv2dOptions(6, 6, 3).padding(1).bias(false)};
  nn::BatchNorm2d norm1{6};
  nn::GroupNorm norm2{nn::GroupNormOptions(3, 6)};
  nn::Linear head{6, kVocabulary};
  Images() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    register_module("head", head);
    to(at::kDouble);
  }
  at::Tensor loss(const Batch& batch) {
    auto x = torch::relu(norm1(conv1(batch.at("images"))));
    x = torch::relu(x + norm2(conv2(x)));
    x = at::max_pool2d(x, 2).mean({2, 3});
    return F::cross_entropy(head(x), batch.at("labels"),
                            F::CrossEntropyFuncOptions().label_smoothing(0.1));
  }
};

Model images(int64_t rows) {
  auto net = std::make_shared<Images>();
  return {net,
          {{"images", at::randn({rows, 3, 6, 6}, at::kDouble)}, {"labels", labels({rows})}},
          [net](const Batch& b) { return Result{net->loss(b)}; }};
}

// A regression with a penalty on weights, a mean squared error and a parameter that is used twice.
struct Regression : nn::Module {
  nn::Linear first{7, 9}, second{9, 9}, last{9, 2};
  Regression() {
    register_module("first", first);
    register_module("second", second);
    register_module("last", last);
    to(at::kDouble);
  }
  at::Tensor loss(const Batch& batch) {
    const auto x = torch::tanh(second(torch::tanh(second(torch::silu(first(batch.at("x")))))));
    return F::mse_loss(last(x), batch.at("y")) + 0.01 * second->weight.square().sum();
  }
};

Model regression(int64_t rows) {
  auto net = std::make_shared<Regression>();
  return {net,
          {{"x", at::randn({rows, 7}, at::kDouble)}, {"y", at::randn({rows, 2}, at::kDouble)}},
          [net](const Batch& b) { return Result{net->loss(b)}; }};
}

// A recurrent network, decomposed.
struct Recurrent : nn::Module {
  nn::LSTM lstm{nn::LSTMOptions(5, 6).batch_first(true)};
  nn::Linear head{6, kVocabulary};
  Recurrent() {
    register_module("lstm", lstm);
    register_module("head", head);
    to(at::kDouble);
  }
  at::Tensor loss(const Batch& batch) {
    const auto x = std::get<0>(lstm(batch.at("x")));
    return F::cross_entropy(head(x.select(1, -1)), batch.at("labels"));
  }
};

Model recurrent(int64_t rows) {
  auto net = std::make_shared<Recurrent>();
  return {net,
          {{"x", at::randn({rows, 3, 5}, at::kDouble)}, {"labels", labels({rows})}},
          [net](const Batch& b) { return Result{net->loss(b)}; }};
}

// Experts chosen by a router's top two, all computed densely and weighted by scatter.
struct Experts : nn::Module {
  at::Tensor up, down;
  nn::Linear router{kWidth, 4}, head{kWidth, kVocabulary};
  Experts() {
    register_module("router", router);
    register_module("head", head);
    up = register_parameter("up", at::randn({4, kWidth, 8}) * 0.3);
    down = register_parameter("down", at::randn({4, 8, kWidth}) * 0.3);
    to(at::kDouble);
    up = named_parameters()["up"];
    down = named_parameters()["down"];
  }
  at::Tensor loss(const Batch& batch) {
    const auto x = batch.at("x");
    const auto scores = torch::softmax(router(x), -1);
    const auto [best, chosen] = scores.topk(2, -1);
    const auto gates = torch::zeros_like(scores).scatter(-1, chosen, best / best.sum(-1, true));
    const auto hidden = torch::relu(torch::einsum("nd,edh->enh", {x, up}));
    const auto out = torch::einsum("enh,ehd,ne->nd", {hidden, down, gates});
    const auto balance = scores.mean(0).square().sum();
    return F::cross_entropy(head(x + out), batch.at("labels")) + 0.1 * balance;
  }
};

// A layer whose bias gets one gradient five times, and a sequence of blocks, the middle one used twice.
struct Shared : nn::Module {
  nn::Linear first{9, kWidth}, head{kWidth, kVocabulary};
  nn::ModuleList blocks;
  Shared() {
    register_module("first", first);
    register_module("blocks", blocks);
    register_module("head", head);
    for (int k = 0; k < 3; ++k) {
      blocks->push_back(nn::Sequential(nn::Linear(kWidth, 2 * kWidth), nn::GELU(),
                                       nn::Linear(2 * kWidth, kWidth)));
    }
  }
  at::Tensor loss(const Batch& batch) {
    auto x = first(batch.at("x"));
    for (int k = 1; k < 5; ++k) x = x + first(batch.at("x") * (0.1 * k));
    for (const size_t k : {0, 1, 1, 2}) x = x + blocks[k]->as<nn::Sequential>()->forward(x);
    return F::cross_entropy(head(x), batch.at("labels"));
  }
};

Model experts(int64_t rows) {
  auto net = std::make_shared<Experts>();
  return {net,
          {{"x", at::randn({rows, kWidth}, at::kDouble)}, {"labels", labels({rows})}},
          [net](const Batch& b) { return Result{net->loss(b)}; }};
}

}  // namespace

Model shared_module(int64_t rows, at::ScalarType dtype) {
  auto net = std::make_shared<Shared>();
  net->to(dtype);
  return {net,
          {{"x", at::randn({rows, 9}, dtype)}, {"labels", labels({rows})}},
          [net](const Batch& b) { return Result{net->loss(b)}; }};
}

Given capture_model(const Model& model, int64_t microbatches) {
  Given given;
  Batch piece;
  for (const auto& [name, tensor] : model.batch) {
    piece[name] = tensor.narrow(0, 0, tensor.size(0) / microbatches);
  }
  given.graph = capture(*model.module, piece, model.forward).graph;
  given.inputs = {model.batch.begin(), model.batch.end()};
  for (const auto& p : model.module->named_parameters()) given.inputs[p.key()] = p.value().detach();
  for (const auto& b : model.module->named_buffers()) given.inputs[b.key()] = b.value();
  return given;
}

int64_t any(std::mt19937_64& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

void place_randomly(plan::Plan& plan, const graph::Graph& graph, std::mt19937_64& random,
                    bool pin_values) {
  plan.graph_hash = graph::structural_hash(graph);
  const auto draw = [&](const graph::TensorType& type, bool may_be_partial) {
    mesh::Placements placements(plan.mesh.axes.size());
    for (auto& p : placements) {
      const auto rank = static_cast<int64_t>(type.shape.size());
      if (rank > 0 && any(random, 0, 2) > 0) {
        p = mesh::Placement::shard(static_cast<int>(any(random, 0, rank - 1)));
      }
      if (may_be_partial && any(random, 0, 5) == 0) p = mesh::Placement::partial();
    }
    return placements;
  };
  for (const auto& input : graph.inputs) {
    if (input.kind == graph::Input::Kind::constant || any(random, 0, 2) == 0) continue;
    if (input.kind == graph::Input::Kind::data && any(random, 0, 3) > 0) continue;
    plan.placements[input.name] = draw(graph.type(input.value), false);
  }
  const auto names = graph::value_names(graph);
  for (size_t v = 0; pin_values && v < names.size(); ++v) {
    const auto& value = graph.values[v];
    if (value.producer < 0 || any(random, 0, 9) > 0) continue;
    auto& pin = plan.placements[names[v]];
    pin = draw(value.type, graph::is_floating(value.type.dtype));
    for (auto& p : pin) {
      if (!p.is_shard() || any(random, 0, 1) == 0) continue;
      const auto plain = p;
      p.zigzag = any(random, 0, 2) == 0;
      if (any(random, 0, 2) > 0) {
        p.run = any(random, 1, std::max<int64_t>(value.type.shape[p.dim] / 2, 1));
      }
      if (!mesh::runs_divide(value.type.shape, pin, plan.mesh)) p = plain;
    }
  }
}

const std::map<std::string, Model (*)(int64_t)>& models() {
  static const std::map<std::string, Model (*)(int64_t)> all = {{"gpt", gpt},
                                                                {"images", images},
                                                                {"regression", regression},
                                                                {"recurrent", recurrent},
                                                                {"experts", experts}};
  return all;
}

}  // namespace perigee::parity
