// Layers and helpers of the built-in models. Included by their sources only.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "base/fail.h"
#include "capture/models/models.h"

namespace perigee::models {

using at::Tensor;
namespace nn = torch::nn;

BuiltInModel make_gpt(const job::ModelConfig& model, int64_t sequence);
BuiltInModel make_llama(const job::ModelConfig& model, int64_t sequence);
BuiltInModel make_moe(const job::ModelConfig& model, int64_t sequence);
BuiltInModel make_mlp(const job::ModelConfig& model);
BuiltInModel make_resnet(const job::ModelConfig& model);

struct AttentionOptions {
  int64_t width = 0;
  int64_t heads = 1;   // divides width
  double dropout = 0;  // of the attention weights, while training
  bool bias = true;
};

// Causal self-attention of GPT-2: query, key and value in one product, all heads of width / heads.
struct Attention : nn::Module {
  AttentionOptions options;
  nn::Linear qkv, out;

  explicit Attention(const AttentionOptions& options);

  // x [b, s, w] -> [b, s, w]
  Tensor forward(const Tensor& x);
};

// The mean cross entropy of logits [b, s, v] against labels [b, s], and the logits as the result
// "logits"; without "labels" in the batch only the logits.
Result language_result(const Tensor& logits, const Batch& batch);

// The batch of a language model: tokens and labels, [sequence] each.
std::vector<BatchField> language_batch(const job::ModelConfig& model, int64_t sequence);

// Fills a weight with fill_normal(0, deviation).
void fill_normal(Tensor weight, double deviation);

// While one lives, new floating tensors have the model's dtype. Throws Error for a dtype that is
// neither float64, float32 nor bfloat16.
class ParameterType {
 public:
  explicit ParameterType(const job::ModelConfig& model);
  ~ParameterType();
  ParameterType(const ParameterType&) = delete;
  ParameterType& operator=(const ParameterType&) = delete;

 private:
  caffe2::TypeMeta before_;
};

// Builds Net(model) without memory, with parameters of the model's dtype.
template <class Net>
std::shared_ptr<Net> build(const job::ModelConfig& model) {
  ParameterType type(model);
  return deferred<Net>(model);
}

}  // namespace perigee::models
