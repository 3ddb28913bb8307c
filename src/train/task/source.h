// A model that can be captured at any batch size.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capture/capture.h"
#include "graph/adapters/adapters.h"
#include "job/job.h"

namespace perigee {

using job::Job;

// A module, its forward function and an example batch. The module's tensors are
// captured, never moved.
class ModelSource {
 public:
  // `example` may have any number of samples. `batched`: names of its tensors whose dim 0 is the
  // samples; empty: all of them. The other tensors are the same for all samples and may have any
  // shape. Throws Error for a name that the example lacks.
  ModelSource(std::shared_ptr<torch::nn::Module> module, Batch example, Forward forward,
              std::vector<std::string> batched = {});

  // Records the training step (loss, gradients, new buffers) or, in eval mode, the forward pass,
  // for `samples` samples. The last capture of each kind is kept.
  const Captured& at(int64_t samples, bool evaluation = false) const;
  // Returns a source of the graphs with these adapters, and of their first values. Nothing: returns
  // a source like this one. Throws Error where this source has other adapters.
  std::shared_ptr<const ModelSource> with(const std::optional<graph::Adapters>& adapters) const;
  // Records the forward pass for a batch of other shapes than the example's.
  Captured evaluation_of(const Batch& batch) const;
  // Returns the number of samples of the example.
  int64_t samples() const;
  torch::nn::Module& module() const { return *module_; }
  // Throws Error where data.batched of the job lists other inputs than this source.
  void check(const Job& job) const;

 private:
  bool is_batched(const std::string& name) const;
  Batch resized(int64_t samples) const;
  // Returns the capture with the adapters.
  Captured adapted(Captured captured) const;
  // Captures, and marks the inputs that are no batches.
  Captured captured(int64_t samples, bool evaluation) const;
  // Returns the graph with the proof of its loss that the graph of two samples, or of twice as many,
  // shows, where it alone would show another.
  graph::Graph with_proof_of_two(graph::Graph graph, bool evaluation) const;

  std::shared_ptr<torch::nn::Module> module_;
  Batch example_;
  Forward forward_;
  std::vector<std::string> batched_;
  std::optional<graph::Adapters> adapters_;
  struct LastCapture {
    int64_t samples = 0;
    std::shared_ptr<const Captured> captured;
  };
  mutable LastCapture training_, evaluation_;
};

// Returns the source of a model; the arguments are those of ModelSource.
inline std::shared_ptr<const ModelSource> source(std::shared_ptr<torch::nn::Module> module,
                                                 Batch example, Forward forward,
                                                 std::vector<std::string> batched = {}) {
  return std::make_shared<ModelSource>(std::move(module), std::move(example), std::move(forward),
                                       std::move(batched));
}

}  // namespace perigee
