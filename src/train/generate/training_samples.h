// Texts that a model writes while it is trained (train.samples).
#pragma once

#include <cstdint>
#include <string>

#include "compile/trace.h"
#include "train/ranks/blueprint.h"
#include "train/ranks/connect.h"
#include "train/task/task.h"

namespace perigee::train {

// Every rank has one. Its generator and the caches exist while texts are written only, beside the
// memory of the training.
class TrainingSamples {
 public:
  // `file`: samples.jsonl of the run (runtime/runs.md), for rank 0. `blueprint`, `connection` and
  // `traces` must outlive the samples. Throws Error where the model does not generate text, the plan
  // has a pipeline, or a prompt has tokens that the model does not know.
  TrainingSamples(const Task& task, const Blueprint& blueprint, const Connection& connection,
                  compile::TraceSource& traces, std::string file);

  // Continues each prompt with the weights of the newest checkpoint, that of `step`. Rank 0 appends
  // the texts to the file and logs them. All ranks call it. Equal weights give equal texts.
  void write(int64_t step);

 private:
  void require_known_tokens() const;

  const Task& task_;
  const Blueprint& blueprint_;
  const Connection& connection_;
  compile::TraceSource& traces_;
  std::string file_;
};

}  // namespace perigee::train
