#include "capture/models.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/init.h>

#include "capture/model_parts.h"

namespace perigee {

BuiltInModel make_model(const job::Model& model, int64_t sequence) {
  if (model.kind == "gpt") return models::make_gpt(model, sequence);
  if (model.kind == "llama") return models::make_llama(model, sequence);
  if (model.kind == "moe") return models::make_moe(model, sequence);
  if (model.kind == "mlp") return models::make_mlp(model);
  if (model.kind == "resnet") return models::make_resnet(model);
  fail("model", "built-in kinds are gpt, llama, moe, mlp and resnet, but got \"{}\"", model.kind);
}

namespace models {

Result language_result(const Tensor& logits, const Batch& batch) {
  Result result;
  result.results["logits"] = logits;
  const auto labels = batch.find("labels");
  if (labels != batch.end()) {
    result.loss =
        torch::nn::functional::cross_entropy(logits.flatten(0, 1), labels->second.flatten());
  }
  return result;
}

std::vector<BatchField> language_batch(const job::Model& model, int64_t sequence) {
  const auto vocab = model.integer("vocab");
  return {{"tokens", graph::DType::int64, {sequence}, vocab},
          {"labels", graph::DType::int64, {sequence}, vocab}};
}

void fill_normal(Tensor weight, double deviation) {
  torch::nn::init::normal_(weight, 0.0, deviation);
}

ParameterType::ParameterType(const job::Model& model) : before_(c10::get_default_dtype()) {
  const auto type = graph::dtype_of(model.dtype);
  if (!type)
    fail("model", "dtype must be float64, float32 or bfloat16, but got \"{}\"", model.dtype);
  c10::set_default_dtype(
      caffe2::TypeMeta::fromScalarType(*type == graph::DType::float64    ? at::kDouble
                                       : *type == graph::DType::bfloat16 ? at::kBFloat16
                                                                         : at::kFloat));
}

ParameterType::~ParameterType() { c10::set_default_dtype(before_); }

}  // namespace models
}  // namespace perigee
