// The built-in models. Ordinary torch::nn modules, captured like any other; their blocks are the
// scopes `blocks.N`.
#pragma once

#include <cstdint>
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

// How the documents of a language model's data fill its samples.
enum class Packing : uint8_t {
  none,       // a sample is one text: positions are those in the sample, attention spans it
  documents,  // several documents: the batch has their numbers and the positions within them
};

struct BuiltInModel {
  Model model;
  std::vector<BatchField> batch;  // fields of `model.forward`; without labels there is no loss
};

// Makes a model of kind gpt, llama, moe, mlp or resnet (of a completed job) without memory for its
// parameters (`deferred`). `sequence` is the number of tokens of a language model's sample. With
// packed documents the batch has two more fields [sequence]: `documents`, the number of a token's
// document, and `positions`, its position there from 0; tokens attend within their document. Throws
// Error for another kind, for keys that do not fit each other, and for packed documents where the
// kind takes none.
BuiltInModel make_model(const job::ModelConfig& model, int64_t sequence,
                        Packing packing = Packing::none);

}  // namespace perigee
