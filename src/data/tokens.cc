// Language data: files joined into one sequence of tokens, cut into windows of `sequence` + 1 (the
// labels are the tokens one later). The last share of the windows is held out for validation.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "base/fail.h"
#include "base/files/cache_folder.h"
#include "data/data.h"
#include "data/sampler.h"
#include "data/token_cache.h"
#include "data/token_files.h"
#include "data/tokenizer.h"

namespace perigee::data {
namespace {

// Windows [first, first + count) of the tokens.
class Windows : public DataSource {
 public:
  Windows(std::shared_ptr<const Tokens> tokens, const job::Job& job, int64_t vocab, Range windows,
          Sampler sampler)
      : tokens_(std::move(tokens)),
        sequence_(job.data.sequence),
        vocab_(vocab),
        global_(job.batch.global),
        windows_(windows),
        sampler_(std::move(sampler)) {}

  Batch at(int64_t step, Range samples) override {
    auto tokens = at::empty({samples.length, sequence_}, at::kLong);
    auto labels = at::empty({samples.length, sequence_}, at::kLong);
    std::vector<int64_t> window(sequence_ + 1);
    for (int64_t i = 0; i < samples.length && step > 0; ++i) {
      const auto sample = (step - 1) * global_ + samples.begin + i;
      const auto index = sampler_(sample, windows_.length);
      tokens_->read((windows_.begin + index) * sequence_, sequence_ + 1, vocab_, window.data());
      const auto bytes = sequence_ * sizeof(int64_t);
      std::memcpy(tokens.data_ptr<int64_t>() + i * sequence_, window.data(), bytes);
      std::memcpy(labels.data_ptr<int64_t>() + i * sequence_, window.data() + 1, bytes);
    }
    return {{"tokens", tokens}, {"labels", labels}};
  }

  std::vector<int64_t> indices(int64_t step, Range samples) override {
    std::vector<int64_t> places;
    for (int64_t i = 0; i < samples.length; ++i) {
      const auto sample = (step - 1) * global_ + samples.begin + i;
      places.push_back(windows_.begin + sampler_(sample, windows_.length));
    }
    return places;
  }

 private:
  std::shared_ptr<const Tokens> tokens_;
  int64_t sequence_, vocab_, global_;
  Range windows_;
  Sampler sampler_;
};

std::shared_ptr<const Tokens> load(const job::Job& job, const Tokenizer* tokenizer, bool warn) {
  auto tokens = std::make_shared<Tokens>();
  for (const auto& path : job.data.files) {
    if (!tokenizer) {
      tokens->add_file(path, job.data.token_type == "uint16" ? 2 : 4);
    } else if (job.data.tokenizer == "bytes") {
      tokens->add_file(path, 1);
    } else {
      tokens->add(path,
                  tokenize_file(path, *tokenizer, {job.data.tokenizer, cache_folder(), warn}));
    }
  }
  return tokens;
}

}  // namespace

Data open_tokens(const job::Job& job, bool warn) {
  const auto tokenizer = job.data.text.empty() ? nullptr : make_tokenizer(job.data.tokenizer);
  const auto tokens = load(job, tokenizer.get(), warn);
  const auto windows = (tokens->size() - 1) / job.data.sequence;
  auto held_out = static_cast<int64_t>(double(windows) * job.data.validation);
  if (windows - held_out < 1) {
    fail("data",
         "data must hold at least one sample of data.sequence + 1 = {} tokens for training, but it "
         "holds {} tokens",
         job.data.sequence + 1, tokens->size());
  }
  Data data;
  data.vocab = tokenizer ? tokenizer->vocab() : 0;
  auto given = job.model.values.contains("vocab") ? job.model.integer("vocab") : 0;
  for (const auto& field : job.model.fields) {
    if (field.name == "tokens") given = field.classes;
  }
  const auto vocab = given > 0 ? given : data.vocab;
  const auto trained = windows - held_out;
  data.fields = {"tokens", "labels"};
  data.training = std::make_unique<Windows>(tokens, job, vocab, Range{0, trained},
                                            make_sampler(job));
  data.validation.batches = held_out / job.batch.global;
  if (data.validation.batches > 0) {
    data.validation.data = std::make_unique<Windows>(tokens, job, vocab, Range{trained, held_out},
                                                     sequential);
  }
  return data;
}

}  // namespace perigee::data
