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

BuiltInModel make_gpt(const job::ModelConfig& model, int64_t sequence, Packing packing);
BuiltInModel make_llama(const job::ModelConfig& model, int64_t sequence, Packing packing);
BuiltInModel make_moe(const job::ModelConfig& model, int64_t sequence, Packing packing);
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

  // x [b, s, w], documents [b, s] or undefined -> [b, s, w]
  Tensor forward(const Tensor& x, const Tensor& documents);
};

// Returns the documents of a batch, undefined where a sample is one text.
Tensor documents_of(const Batch& batch);

// Returns the positions of the batch's tokens in their documents, [b, s]; [s] where all samples
// have the same.
Tensor positions_of(const Batch& batch);

// Returns the angles by which rotary positions turn pairs of elements, twice in a row: [s, d] where
// all samples have the same positions, else [b, 1, s, d]. `frequencies`: [d / 2], radians a token.
Tensor rotary_angles(const Batch& batch, const Tensor& frequencies);

// The mean cross entropy of logits [b, s, v] against labels [b, s], and the logits as the result
// "logits"; without "labels" in the batch only the logits.
Result language_result(const Tensor& logits, const Batch& batch);

// The batch of a language model: tokens and labels, and with packed documents their numbers and
// positions, [sequence] each.
std::vector<BatchField> language_batch(const job::ModelConfig& model, int64_t sequence,
                                       Packing packing);

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
