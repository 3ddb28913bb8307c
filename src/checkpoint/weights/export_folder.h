// A run's weights as a folder of Hugging Face.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "graph/adapters/adapters.h"
#include "graph/dtype.h"
#include "job/job.h"

namespace perigee::checkpoint {

struct FolderOptions {
  std::string folder;  // is made; may exist where it is empty
  // Largest number of bytes of tensors in a file; a larger tensor has a file of its own.
  int64_t shard_bytes = 5'000'000'000;
  // Type of all tensors. Nothing: each has its type in the model's folder, or where that has no
  // weights, the checkpoint's.
  std::optional<graph::DType> dtype;
  std::optional<graph::Adapters> adapters = {};  // are merged into their weights
};

// Writes the weights of a checkpoint of kind hf under their names in the model's folder, as
// model.safetensors, or as model-00001-of-0000N.safetensors with model.safetensors.index.json. Also
// copies config.json and the other small files of the model's folder (of tokenizers). The folder
// is complete or does not exist. Throws Error for another kind of model, a folder that is not
// empty, and a model's folder that is missing.
void export_folder(const Checkpoint& checkpoint, const job::ModelConfig& model,
                   const FolderOptions& options);

// Returns the [model] of a run's job.toml. The job's other files need not exist any more.
job::ModelConfig model_of_run(const std::string& run);

}  // namespace perigee::checkpoint
