#include "data/data.h"

namespace perigee::data {
namespace {

class Shifted : public DataSource {
 public:
  Shifted(std::unique_ptr<DataSource> source, int64_t global, int64_t more)
      : source_(std::move(source)), global_(global), more_(more) {}

  Batch at(int64_t step, Range samples) override {
    return step == 0 ? source_->at(0, samples) : source_->at(1, of_first_step(step, samples));
  }
  std::vector<int64_t> indices(int64_t step, Range samples) override {
    return source_->indices(1, of_first_step(step, samples));
  }
  std::vector<std::pair<std::string, int64_t>> counts(int64_t samples) override {
    return source_->counts(samples + more_);
  }

 private:
  // Sources number samples from step to step: those of any step are some after those of the first.
  Range of_first_step(int64_t step, Range samples) const {
    return {(step - 1) * global_ + more_ + samples.begin, samples.length};
  }

  std::unique_ptr<DataSource> source_;
  int64_t global_, more_;
};

}  // namespace

std::unique_ptr<DataSource> shifted(std::unique_ptr<DataSource> source, int64_t global,
                                    int64_t more) {
  if (more == 0) return source;
  return std::make_unique<Shifted>(std::move(source), global, more);
}

Data open_data(const job::Job& job, Division division, const IdLimit& limit) {
  if (job.data.slice_files && division.file_slices() > 1) return open_slices(job, division, limit);
  if (!job.data.token_sources().empty()) return open_tokens(job, division.warn, limit);
  if (!job.data.tensors.empty()) return open_tensors(job, limit);
  return open_synthetic(job);
}

}  // namespace perigee::data
