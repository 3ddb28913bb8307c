// Language data: files joined into one sequence of tokens, cut into windows of `sequence` + 1 (the
// labels are the tokens one later). The last share of the windows is held out for validation.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/fail.h"
#include "base/files/cache_folder.h"
#include "base/log_once.h"
#include "data/data.h"
#include "data/sampler.h"
#include "data/token_cache.h"
#include "data/token_files.h"
#include "text/tokenizer.h"

namespace perigee::data {
namespace {

// Windows [first, first + count) of the tokens.
class Windows : public DataSource {
 public:
  Windows(std::shared_ptr<const Tokens> tokens, const job::Job& job, IdLimit limit, Range windows,
          Sampler sampler)
      : tokens_(std::move(tokens)),
        sequence_(job.data.sequence),
        global_(job.batch.global),
        limit_(std::move(limit)),
        windows_(windows),
        sampler_(std::move(sampler)) {}

  Batch at(int64_t step, Range samples) override {
    auto tokens = at::empty({samples.length, sequence_}, at::kLong);
    auto labels = at::empty({samples.length, sequence_}, at::kLong);
    std::vector<int64_t> window(sequence_ + 1);
    for (int64_t i = 0; i < samples.length && step > 0; ++i) {
      const auto sample = (step - 1) * global_ + samples.begin + i;
      const auto index = sampler_(sample, windows_.length);
      tokens_->read((windows_.begin + index) * sequence_, sequence_ + 1, limit_, window.data());
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
  int64_t sequence_, global_;
  IdLimit limit_;
  Range windows_;
  Sampler sampler_;
};

// Warns about a file that is not the plain text that data.text takes.
void warn_of_format(const std::string& path) {
  const auto ending = std::filesystem::path(path).extension();
  const bool json = ending == ".jsonl" || ending == ".ndjson" || ending == ".json";
  const bool binary = ending == ".gz" || ending == ".zst" || ending == ".parquet" ||
                      ending == ".arrow";
  if (!json && !binary) return;
  log::once(
      log::Level::warn,
      fmt::format("data: {} is {}, which data.text learns byte for byte{}: give a file with the "
                  "texts alone",
                  path, json ? "JSON" : "compressed or binary",
                  json ? ", with braces, quotes and keys" : ""));
}

// Returns the limit of the model, of its job and of its script that takes the fewest ids.
IdLimit smallest_limit(const job::Job& job, IdLimit limit, int64_t tokenizer) {
  const auto add = [&](int64_t below, const char* why) {
    if (below > 0 && (limit.below <= 0 || below < limit.below)) limit = {below, why};
  };
  add(job.model.values.contains("vocab") ? job.model.integer("vocab") : 0, "model.vocab");
  for (const auto& field : job.model.fields) {
    if (field.name == "tokens") add(field.classes, "the classes of tokens in the model's script");
  }
  add(limit.below == 0 ? tokenizer : 0, "the vocabulary of data.tokenizer");
  return limit;
}

std::shared_ptr<const Tokens> load(const job::Job& job, const text::Tokenizer* tokenizer,
                                   bool warn) {
  auto tokens = std::make_shared<Tokens>();
  for (const auto& path : job.data.files) {
    if (tokenizer && warn) warn_of_format(path);
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

Data open_tokens(const job::Job& job, bool warn, const IdLimit& limit) {
  const auto tokenizer = job.data.text.empty() ? nullptr : text::make_tokenizer(job.data.tokenizer);
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
  const auto ids = smallest_limit(job, limit, data.vocab);
  if (data.vocab > ids.below) {
    fail("data", "ids of data.tokenizer must be below {} = {}, but {} has {} ids", ids.why,
         ids.below, job.data.tokenizer, data.vocab);
  }
  const auto trained = windows - held_out;
  data.fields = {"tokens", "labels"};
  data.training = std::make_unique<Windows>(tokens, job, ids, Range{0, trained}, make_sampler(job));
  data.validation.batches = held_out / job.batch.global;
  if (data.validation.batches > 0) {
    data.validation.data = std::make_unique<Windows>(tokens, job, ids, Range{trained, held_out},
                                                     sequential);
  }
  return data;
}

}  // namespace perigee::data
