// The built-in models. Ordinary torch::nn modules, captured like any other; their blocks are the
// scopes `blocks.N`.
#pragma once

#include <string>
#include <vector>

#include "capture/capture.h"
#include "job/job.h"

namespace perigee {

// One tensor of a model's batch; dim 0, the samples, is not in `shape`.
struct BatchField {
  std::string name;
  graph::DType dtype = graph::DType::int64;
  std::vector<int64_t> shape;
  int64_t classes = 0;  // integers: values are in [0, classes)
  int64_t shift = 0;    // synthetic integers: the sample's sequence from that position on
};

struct BuiltInModel {
  Model model;
  std::vector<BatchField> batch;  // fields of `model.forward`; without labels there is no loss
};

// Makes a model of kind gpt, llama, moe, mlp or resnet (of a completed job) without memory for its
// parameters (`deferred`). `sequence` is the number of tokens of a language model's sample. Throws
// Error for another kind, and for keys that do not fit each other.
BuiltInModel make_model(const job::ModelConfig& model, int64_t sequence);

}  // namespace perigee
