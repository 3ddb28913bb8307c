// Trains a small model through capture, plan, program and executor on ranks that are threads, and
// eagerly with LibTorch.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "plan/plan.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {

struct GptShape {
  int64_t vocabulary = 13;
  int64_t sequence = 6;
  int64_t width = 12;
  int64_t heads = 3;
  int64_t layers = 2;
  double dropout = 0;
  bool tied = false;  // the head is the embedding
};

// GPT-2 in torch::nn, float64, from a fixed seed.
class Gpt : public torch::nn::Module {
 public:
  explicit Gpt(GptShape shape);
  // tokens [b, s] -> logits [b, s, vocabulary]
  at::Tensor forward(const at::Tensor& tokens);
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& labels);

 private:
  GptShape shape_;
  torch::nn::Embedding tokens_{nullptr}, positions_{nullptr};
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};

// The parameters of a training beside the model.
struct Recipe {
  int64_t steps = 3;
  int64_t batch = 8;  // sequences per step
  double lr = 1e-2;
  compile::StepSpec spec{.options = {{"beta2", 0.95}}, .weight_decay = 0.1, .clip_norm = 0.5};
  double ignored = 0.2;  // share of the labels
};

struct Trained {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> parameters;
  int64_t peak_bytes = 0;  // of rank 0's program
};

struct Ranks {
  int64_t count = 1;
  int64_t microbatches = 1;
  // Changes a rank's program before it runs, for negative controls.
  std::function<void(compile::Program&)> edit = {};
  // Changes the plan before it is compiled.
  std::function<void(plan::Plan&, const graph::Graph&)> plan = {};
  bool one_seed = true;  // false: every rank draws its own random numbers
};

// Trains Gpt(shape) over data-parallel ranks.
Trained train_ranks(const GptShape& shape, const Recipe& recipe, const Ranks& ranks);

// Trains Gpt(shape) with torch::optim on one batch per step.
Trained train_eagerly(const GptShape& shape, const Recipe& recipe);

// The same for a convolution with batch norm, trained by sgd with momentum on `microbatches` pieces
// of each batch: buffers are among the parameters. Eagerly, gradients of the pieces are summed and
// divided by their number.
Trained train_convolution(int64_t ranks, int64_t microbatches);
Trained train_convolution_eagerly(int64_t microbatches);

// Returns "" if losses, norms and parameters agree to the tolerance (relative to the larger of 1
// and the value), else the first difference.
std::string compare(const Trained& a, const Trained& b, double tolerance = 1e-10);

}  // namespace perigee::parity
