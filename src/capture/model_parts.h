// What the built-in models share. Included by their sources only.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "base/error.h"
#include "capture/models.h"

namespace perigee::models {

using at::Tensor;
namespace nn = torch::nn;

BuiltInModel make_gpt(const job::Model& model, int64_t sequence);
BuiltInModel make_llama(const job::Model& model, int64_t sequence);
BuiltInModel make_moe(const job::Model& model, int64_t sequence);
BuiltInModel make_mlp(const job::Model& model);
BuiltInModel make_resnet(const job::Model& model);

// The mean cross entropy of logits [b, s, v] against labels [b, s], and the logits as the result
// "logits"; without "labels" in the batch only the logits.
Result language_result(const Tensor& logits, const Batch& batch);

// The batch of a language model: tokens and labels, [sequence] each.
std::vector<BatchField> language_batch(const job::Model& model, int64_t sequence);

// Fills a weight with fill_normal(0, deviation).
void fill_normal(Tensor weight, double deviation);

// While one lives, new floating tensors have the model's dtype.
class ParameterType {
 public:
  explicit ParameterType(const job::Model& model);
  ~ParameterType();

 private:
  caffe2::TypeMeta before_;
};

// Builds Net(model) without memory, with parameters of the model's dtype.
template <class Net>
std::shared_ptr<Net> build(const job::Model& model) {
  ParameterType type(model);
  return deferred<Net>(model);
}

}  // namespace perigee::models
