// Adapters as a folder of PEFT 0.21: adapter_config.json and adapter_model.safetensors, whose
// tensors are "base_model.model.MODULE.lora_A.weight" [rank, in], "...lora_B.weight" [out, rank],
// and of modules_to_save "base_model.model.MODULE.weight" and the like. MODULE is the module's path
// in transformers for models of Hugging Face, else in the model.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/weights/initial_weights.h"
#include "graph/adapters/adapters.h"
#include "job/job.h"

namespace perigee::checkpoint {

// First values of a run's adapters.
class AdapterValues {
 public:
  // Opens the folder. `wanted`: the model's tensors, with those of the adapters. Everything is
  // checked here. Throws Error for another rank or scale than the adapters', options of PEFT that
  // `lora` does not have, and tensors that are missing, of another model or of another shape.
  AdapterValues(const std::string& folder, const job::ModelConfig& model,
                const graph::Adapters& adapters, const std::vector<WantedTensor>& wanted);

  bool has(std::string_view name) const { return found_.contains(name); }
  // Reads one part of the tensor, one range per dim, into a tensor of the part's shape.
  void read(std::string_view name, const std::vector<mesh::Range>& ranges, at::Tensor target) const;
  // Returns "28 of 28 tensors of adapters loaded from DIR".
  std::string report() const;

 private:
  struct Found {
    const TensorBytes* stored = nullptr;
    hf::Form form = hf::Form::same;
  };
  WeightFiles files_;
  std::map<std::string, Found, std::less<>> found_;
  int64_t heads_ = 1;
};

// Writes the run's adapters and trained parameters to a new folder. Throws Error where modules of
// trained parameters have others that are frozen, since PEFT keeps whole modules.
void export_adapter(const Checkpoint& checkpoint, const job::ModelConfig& model,
                    const graph::Adapters& adapters, const std::string& folder);

}  // namespace perigee::checkpoint
