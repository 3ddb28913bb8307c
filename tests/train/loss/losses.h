// Small models and losses that are cut into microbatches.
#pragma once

#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <torch/nn.h>

#include <cmath>

#include "tests/support/torch_test.h"
#include "train/trainer.h"

namespace perigee::losses {

namespace F = torch::nn::functional;

// A module with the forward function of a test.
struct Family {
  std::shared_ptr<torch::nn::Module> module;
  Batch batch;  // the samples of a step
  Forward forward;
  std::vector<std::string> starts;  // of the second pipeline stage
};

inline torch::Tensor real(std::vector<int64_t> shape, double phase) {
  const auto count = c10::multiply_integers(shape);
  return torch::arange(0, count, torch::kDouble).mul(0.7).add(phase).sin().reshape(shape);
}

inline torch::Tensor whole(std::vector<int64_t> shape, int64_t below) {
  return (torch::arange(c10::multiply_integers(shape)) * 7 + 3).remainder(below).reshape(shape);
}

// Encoder layers over a sequence that comes first, with a class token before it.
class Classifier : public torch::nn::Module {
 public:
  Classifier() {
    torch::manual_seed(6);
    embed_ = register_module("embed", torch::nn::Linear(4, 8));
    token_ = register_parameter("token", torch::randn({1, 1, 8}));
    layers_ = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 2; ++i) {
      layers_->push_back(torch::nn::TransformerEncoderLayer(
          torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0)));
    }
    head_ = register_module("head", torch::nn::Linear(8, 5));
    to(torch::kDouble);
  }
  Result run(const Batch& batch) {
    auto x = embed_->forward(batch.at("patches")).transpose(0, 1);
    x = torch::cat({token_.expand({1, x.size(1), 8}), x});
    for (const auto& layer : *layers_) {
      x = layer->as<torch::nn::TransformerEncoderLayer>()->forward(x);
    }
    const auto options = F::CrossEntropyFuncOptions().label_smoothing(0.1).ignore_index(4);
    return {F::cross_entropy(head_->forward(x[0]), batch.at("label"), options)};
  }

 private:
  torch::nn::Linear embed_{nullptr}, head_{nullptr};
  torch::Tensor token_;
  torch::nn::ModuleList layers_{nullptr};
};

inline Family classifier() {
  auto net = std::make_shared<Classifier>();
  return {net,
          {{"patches", real({8, 6, 4}, 0)}, {"label", whole({8}, 5)}},
          [net](const Batch& batch) { return net->run(batch); },
          {"layers.1"}};
}

// A linear map and a loss of its outputs, [samples, 4], and the batch.
class Mapped : public torch::nn::Module {
 public:
  Mapped() {
    torch::manual_seed(8);
    linear_ = register_module("linear", torch::nn::Linear(4, 4));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) { return linear_->forward(x); }

 private:
  torch::nn::Linear linear_{nullptr};
};

using LossOf = std::function<torch::Tensor(const torch::Tensor&, const Batch&)>;

inline Family mapped(const LossOf& loss) {
  auto net = std::make_shared<Mapped>();
  return {
      net,
      {{"x", real({8, 4}, 0)},
       {"y", real({8, 4}, 1)},
       {"weight", real({8}, 3).abs()},
       {"kept", whole({8, 4}, 3).gt(0)},
       {"place", whole({8}, 4)}},
      [net, loss](const Batch& batch) { return Result{loss(net->forward(batch.at("x")), batch)}; }};
}

inline torch::Tensor errors(const torch::Tensor& out, const Batch& batch) {
  return (out - batch.at("y")).pow(2);
}

struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> weights;
};

// Makes a model with its first weights.
using Maker = std::function<Family()>;

inline Trained run(const Maker& make, int64_t micro, const std::string& methods = "",
                   const std::string& keys = "") {
  const auto family = make();
  const auto source = perigee::source(family.module, family.batch, family.forward);
  auto job = Job::parse(
      fmt::format("[model]\nkind = 'mlp'\ndtype = 'float64'\n[batch]\nglobal = 8\n[train]\n"
                  "steps = 2\nvalidate_every = 0\n[cluster]\ndevice = 'cpu'\n{}",
                  keys),
      "test.toml");
  job.batch.micro = micro;
  const int64_t ranks = methods.empty() ? 1 : 2;
  const auto strategy = Strategy::data(methods.empty() ? "[]" : methods);
  Trainer trainer{*family.module, make_plan(source, strategy, job, {ranks}), job,
                  Ranks::threads(ranks), nullptr};
  Trained trained;
  for (int step = 0; step < 2; ++step) trained.losses.push_back(trainer.step(family.batch).loss);
  trainer.copy_to(*family.module);
  for (const auto& item : family.module->named_parameters()) {
    trained.weights[item.key()] = item.value().detach();
  }
  return trained;
}

inline void check_equal(const Trained& a, const Trained& b) {
  CHECK(a.losses[0] != a.losses[1]);
  for (size_t i = 0; i < a.losses.size(); ++i) {
    CHECK(std::abs(a.losses[i] - b.losses[i]) < 1e-10);
  }
  for (const auto& [name, weight] : a.weights) {
    INFO(name);
    CHECK(at::allclose(weight, b.weights.at(name), 1e-9, 1e-10));
  }
}

// The loss is cut with the numbers of the whole batch, also over two data ranks.
inline void check_cut(const LossOf& loss) {
  const auto family = [&] { return mapped(loss); };
  const auto one = run(family, 8);
  check_equal(one, run(family, 2));
  check_equal(one, run(family, 2, R"([["parallel_mode", [["data", 2]]]])"));
}

}  // namespace perigee::losses
