// Sources of batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/id_limit.h"
#include "job/job.h"
#include "mesh/placement.h"
#include "plan/plan.h"

namespace perigee {

using Batch = std::map<std::string, at::Tensor>;
using mesh::Range;

// A source of training samples: a pure function of (step, samples), hence resumable and the same
// for every number of ranks and microbatches.
struct DataSource {
  virtual ~DataSource() = default;
  // Returns the named tensors of the samples [begin, begin + length) of the step's global batch,
  // dim 0 the samples, on the CPU; other inputs (data.batched) are unsharded. May be
  // called from another thread than the trainer's, one call at a time. Steps count from 1; of step
  // 0 only the shapes are used. Throws Error.
  virtual Batch at(int64_t step, Range samples) = 0;
  // Returns the places of the samples in the data set, from 0; nothing where the source does not
  // say them.
  virtual std::vector<int64_t> indices(int64_t /*step*/, Range /*samples*/) { return {}; }
  // Returns how many of the run's first `samples` samples are of each of several sources, by name;
  // nothing where there is one.
  virtual std::vector<std::pair<std::string, int64_t>> counts(int64_t /*samples*/) { return {}; }
};

namespace data {

// Samples held out from training, in a fixed order.
struct Validation {
  std::unique_ptr<DataSource> data;  // step k: the k-th global batch of held-out samples
  int64_t batches = 0;               // 0: too few samples were held out
  // The learned labels of the first batches, by which a mean loss weighs them; empty: all equally.
  std::vector<int64_t> learned;
};

struct Data {
  std::unique_ptr<DataSource> training;
  std::vector<std::string> fields;  // of a batch, in the order of the data
  Validation validation;
  int64_t vocab = 0;  // of the tokenizer; 0: not text
};

// How a step's samples are divided: into microbatches, and each of those into equal blocks, one for
// each rank that the batch is sharded over (of all copies of the model together).
struct Division {
  int64_t microbatches = 1, ranks = 1;
  bool warn = true;  // warn where files are not assigned to single ranks, or not cached
  // The ranks that data.slice_files deals the files to; 0: those above. Others where a run began on
  // another number of ranks, whose samples it keeps.
  int64_t slices = 0;

  int64_t file_slices() const { return slices > 0 ? slices : ranks; }
};

// Returns how the plan divides a step's samples.
Division division_of(const plan::Plan& plan);

// Opens the job's data. The numbers of `division` matter for data.slice_files only. `limit`: of the
// model's graph, beside those of the job and its tokenizer. Throws Error
// naming the file for files that are damaged or too short for one sample; a batch with token ids
// beyond the limit throws, too.
Data open_data(const job::Job& job, Division division = {}, const IdLimit& limit = {});

// Returns the source from `more` samples later on (earlier where negative), for a run whose earlier
// steps had batches of another size than `global`, that of the source.
std::unique_ptr<DataSource> shifted(std::unique_ptr<DataSource> source, int64_t global,
                                    int64_t more);

// Returns the files of each of `ranks` ranks by data.slice_files and data.left_over; nothing where
// files are not assigned to ranks.
std::vector<std::vector<std::string>> deal_files(const std::vector<std::string>& files,
                                                 const std::string& left_over, int64_t ranks);

// The sources that open_data chooses from, by the key of the job that names the files.
Data open_tokens(const job::Job& job, bool warn, const IdLimit& limit);  // data.token_sources()
Data open_tensors(const job::Job& job, const IdLimit& limit);            // data.tensors
Data open_synthetic(const job::Job& job);                                // data.synthetic
Data open_slices(const job::Job& job, Division division,
                 const IdLimit& limit);  // data.slice_files

}  // namespace data
}  // namespace perigee
