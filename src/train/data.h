// Where batches come from.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "job/job.h"
#include "mesh/placement.h"

namespace perigee {

using Batch = std::map<std::string, at::Tensor>;
using mesh::Range;

// A source of training samples: a pure function of (step, samples), hence resumable and the same
// for every number of ranks and microbatches.
struct DataSource {
  virtual ~DataSource() = default;
  // Returns the named tensors of the samples [begin, begin + length) of the step's global batch,
  // dim 0 the samples, on the CPU. May be called from another thread than the trainer's, one call
  // at a time. Steps count from 1; step 0 asks for nothing but shapes. Throws Error.
  virtual Batch at(int64_t step, Range samples) = 0;
};

namespace train {

// Samples held back from training, in a fixed order.
struct Validation {
  std::unique_ptr<DataSource> data;  // step k: the k-th global batch of held-back samples
  int64_t batches = 0;               // 0: too few samples were held back
};

struct Data {
  std::unique_ptr<DataSource> training;
  Validation validation;
  int64_t vocab = 0;  // of the tokenizer; 0: not text
};

// Opens the job's data. Throws Error naming the file for files that are damaged, too short for one
// sample, or hold token ids beyond the model's vocabulary.
Data open_data(const job::Job& job);

// A sample number's place in the training order: sample i of the run is window permutation(epoch, i
// mod n) of n.
int64_t shuffled(int64_t sample, int64_t count, uint64_t seed);

// The sources that open_data picks from.
Data open_tokens(const job::Job& job);     // data.text, data.tokens
Data open_tensors(const job::Job& job);    // data.tensors
Data open_synthetic(const job::Job& job);  // data.synthetic

}  // namespace train
}  // namespace perigee
