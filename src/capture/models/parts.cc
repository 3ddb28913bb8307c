#include "capture/models/parts.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/init.h>

#include "capture/composites/attention.h"

namespace perigee::models {

Attention::Attention(const AttentionOptions& options)
    : options(options),
      qkv(nn::LinearOptions(options.width, 3 * options.width).bias(options.bias)),
      out(nn::LinearOptions(options.width, options.width).bias(options.bias)) {
  register_module("qkv", qkv);
  register_module("out", out);
}

Tensor Attention::forward(const Tensor& x, const Tensor& documents) {
  const auto b = x.size(0), s = x.size(1), w = x.size(2);
  // Query, key and value are adjacent for each head, so that heads can be sharded.
  const auto parts =
      qkv(x).view({b, s, options.heads, 3, w / options.heads}).permute({3, 0, 2, 1, 4});
  const auto y = perigee::attention(
      parts[0], parts[1], parts[2],
      {.documents = documents, .dropout = is_training() ? options.dropout : 0.0, .causal = true});
  return out(y.transpose(1, 2).reshape({b, s, w}));
}

Tensor documents_of(const Batch& batch) {
  const auto found = batch.find("documents");
  return found == batch.end() ? Tensor() : found->second;
}

Tensor positions_of(const Batch& batch) {
  if (const auto found = batch.find("positions"); found != batch.end()) return found->second;
  const auto& tokens = batch.at("tokens");
  return at::arange(tokens.size(1), tokens.options());
}

Tensor rotary_angles(const Batch& batch, const Tensor& frequencies) {
  const auto found = batch.find("positions");
  const bool packed = found != batch.end();
  const auto positions = packed
                             ? found->second.to(frequencies.scalar_type())
                             : at::arange(
                                   batch.at("tokens").size(1),
                                   batch.at("tokens").options().dtype(frequencies.scalar_type()));
  const auto half = positions.unsqueeze(-1) * frequencies;
  const auto angles = at::cat({half, half}, -1);
  return packed ? angles.unsqueeze(1) : angles;
}

Result language_result(const Tensor& logits, const Batch& batch) {
  Result result;
  result.results["logits"] = logits;
  const auto labels = batch.find("labels");
  if (labels != batch.end()) {
    result.loss = torch::nn::functional::cross_entropy(logits.flatten(0, 1),
                                                       labels->second.flatten());
  }
  return result;
}

std::vector<BatchField> language_batch(const job::ModelConfig& model, int64_t sequence,
                                       Packing packing) {
  const auto vocab = model.integer("vocab");
  std::vector<BatchField> fields = {{"tokens", graph::DType::int64, {sequence}, vocab},
                                    {"labels", graph::DType::int64, {sequence}, vocab}};
  if (packing == Packing::documents) {
    for (const auto* name : {"documents", "positions"}) {
      fields.push_back({name, graph::DType::int64, {sequence}, sequence});
    }
  }
  return fields;
}

void fill_normal(Tensor weight, double deviation) {
  torch::nn::init::normal_(weight, 0.0, deviation);
}

ParameterType::ParameterType(const job::ModelConfig& model) : before_(c10::get_default_dtype()) {
  const auto type = graph::dtype_of(model.dtype);
  if (!type)
    fail("model", "dtype must be float64, float32 or bfloat16, but got \"{}\"", model.dtype);
  c10::set_default_dtype(
      caffe2::TypeMeta::fromScalarType(*type == graph::DType::float64    ? at::kDouble
                                       : *type == graph::DType::bfloat16 ? at::kBFloat16
                                                                         : at::kFloat));
}

ParameterType::~ParameterType() { c10::set_default_dtype(before_); }

}  // namespace perigee::models
