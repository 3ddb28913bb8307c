// Files assigned to the ranks that the batch is sharded over: each rank draws samples from its own
// files, in a separate order.
#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "base/fail.h"
#include "base/log_format.h"
#include "data/data.h"
#include "plan/pipeline.h"
#include "plan/plan.h"

namespace perigee::data {
namespace {

// The global batch's samples are, microbatch by microbatch, blocks of the ranks' samples.
class Slices : public DataSource {
 public:
  // `sources`: one a rank, each of rows * microbatches samples a step.
  Slices(std::vector<std::unique_ptr<DataSource>> sources, int64_t rows)
      : sources_(std::move(sources)), rows_(rows) {}

  Batch at(int64_t step, Range samples) override {
    if (step == 0) return sources_.front()->at(0, samples);
    const auto ranks = std::ssize(sources_);
    std::map<std::string, std::vector<at::Tensor>> parts;
    for (int64_t at = samples.begin; at < samples.begin + samples.length;) {
      const auto block = at / rows_, within = at % rows_;
      const auto length = std::min(rows_ - within, samples.begin + samples.length - at);
      const auto microbatch = block / ranks;
      auto batch = sources_[static_cast<size_t>(block % ranks)]->at(
          step, {microbatch * rows_ + within, length});
      for (auto& [name, tensor] : batch) parts[name].push_back(std::move(tensor));
      at += length;
    }
    Batch batch;
    for (const auto& [name, list] : parts) batch[name] = list.size() == 1 ? list[0] : at::cat(list);
    return batch;
  }

 private:
  std::vector<std::unique_ptr<DataSource>> sources_;
  int64_t rows_;  // of a rank in a microbatch
};

}  // namespace

Division division_of(const plan::Plan& plan) {
  return {.microbatches = plan.microbatches,
          .ranks = plan::copies_of(plan) * plan::batch_ranks(plan)};
}

std::vector<std::vector<std::string>> deal_files(const std::vector<std::string>& files,
                                                 const std::string& left_over, int64_t ranks) {
  auto count = std::ssize(files);
  if (count < ranks || (count % ranks != 0 && left_over == "share")) return {};
  if (left_over == "drop") count -= count % ranks;
  std::vector<std::vector<std::string>> dealt(static_cast<size_t>(ranks));
  for (int64_t i = 0; i < count; ++i) {
    dealt[static_cast<size_t>(i % ranks)].push_back(files[static_cast<size_t>(i)]);
  }
  return dealt;
}

Data open_slices(const job::Job& job, Division division, const IdLimit& limit) {
  const auto slices = division.file_slices();
  const auto dealt = deal_files(job.data.files, job.data.left_over, slices);
  auto whole = job;
  whole.data.slice_files = false;
  if (dealt.empty()) {
    if (division.warn) {
      log::warn(
          "data.slice_files has no effect: {} file{} cannot be distributed evenly over {} data "
          "ranks, so samples are distributed instead{}",
          job.data.files.size(), job.data.files.size() == 1 ? "" : "s", slices,
          std::ssize(job.data.files) < slices
              ? ""
              : " (data.left_over = \"deal\" or \"drop\" distributes the files)");
    }
    return open_data(whole, {}, limit);
  }
  // A step has the same samples for any number of microbatches; on other ranks than those of the
  // files no block is a rank's.
  const auto microbatches = slices == division.ranks ? division.microbatches : 1;
  const auto blocks = microbatches * slices;
  if (job.batch.global % blocks != 0) {
    fail("data",
         "data.slice_files gives all data ranks equally many samples: batch.global must be a "
         "multiple of "
         "{} ({} microbatches on {} ranks), but is {}",
         blocks, microbatches, slices, job.batch.global);
  }
  const auto rows = job.batch.global / blocks;
  Data data;
  std::vector<std::unique_ptr<DataSource>> training, held_out;
  data.validation.batches = std::numeric_limits<int64_t>::max();
  for (const auto& files : dealt) {
    auto own = whole;
    own.data.files = files;
    own.batch.global = rows * microbatches;
    auto opened = open_data(own, {}, limit);
    data.vocab = opened.vocab;
    data.fields = opened.fields;
    training.push_back(std::move(opened.training));
    held_out.push_back(std::move(opened.validation.data));
    data.validation.batches = std::min(data.validation.batches, opened.validation.batches);
  }
  data.training = std::make_unique<Slices>(std::move(training), rows);
  if (data.validation.batches > 0) {
    data.validation.data = std::make_unique<Slices>(std::move(held_out), rows);
  }
  return data;
}

}  // namespace perigee::data
