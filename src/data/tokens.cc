// Language data: sources of tokens as samples with labels, mixed by weight. The last share of each
// source's samples is held out for validation.
#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>

#include "base/fail.h"
#include "base/files/cache_folder.h"
#include "base/log_once.h"
#include "data/data.h"
#include "data/documents/masking.h"
#include "data/documents/mixture.h"
#include "data/documents/sequences.h"
#include "data/sampler.h"
#include "text/documents/byte_source.h"
#include "text/documents/end_of_text.h"
#include "text/tokenizer.h"

namespace perigee::data {
namespace {

// The samples of one source that are drawn.
struct Part {
  std::string name;
  std::shared_ptr<const Sequences> sequences;
  Range samples;
  int64_t offset = 0;  // of the source's samples in the data set
  Sampler sampler;
};

// The fields of a batch, as the job has them.
struct Fields {
  bool documents = false;  // "documents" and "positions"
  bool mask = false;       // "attention_mask": 1 for tokens, 0 for padding
  bool classes = false;    // "labels" are classes of samples

  explicit Fields(const job::DataConfig& data)
      : documents(data.pack == "documents"),
        mask(data.pack == "none" && data.objective != "causal"),
        classes(data.objective == "classification") {}

  std::vector<std::string> names() const {
    std::vector<std::string> names = {"tokens", "labels"};
    if (documents) names.insert(names.end(), {"documents", "positions"});
    if (mask) names.emplace_back("attention_mask");
    return names;
  }
};

class TokenData : public DataSource {
 public:
  TokenData(const job::Job& job, std::vector<Part> parts, const std::vector<double>& weights,
            IdLimit limit, std::optional<Masking> masking, bool held_out)
      : parts_(std::move(parts)),
        mixture_(weights, static_cast<uint64_t>(job.seed), held_out),
        fields_(job.data),
        sequence_(job.data.sequence),
        global_(job.batch.global),
        limit_(std::move(limit)),
        masking_(std::move(masking)) {}

  Batch at(int64_t step, Range samples) override {
    Batch batch;
    for (const auto& name : fields_.names()) {
      batch[name] = name == "labels" && fields_.classes
                        ? at::empty({samples.length}, at::kLong)
                        : at::empty({samples.length, sequence_}, at::kLong);
    }
    for (int64_t i = 0; i < samples.length && step > 0; ++i) {
      read((step - 1) * global_ + samples.begin + i, i, batch);
    }
    return batch;
  }

  std::vector<int64_t> indices(int64_t step, Range samples) override {
    std::vector<int64_t> places;
    for (int64_t i = 0; i < samples.length; ++i) {
      const auto place = mixture_.at((step - 1) * global_ + samples.begin + i);
      const auto& part = parts_[place.source];
      places.push_back(part.offset + index_in(part, place.sample));
    }
    return places;
  }

  std::vector<std::pair<std::string, int64_t>> counts(int64_t samples) override {
    if (parts_.size() < 2) return {};
    std::vector<std::pair<std::string, int64_t>> counts;
    const auto numbers = mixture_.counts(samples);
    for (size_t i = 0; i < parts_.size(); ++i) counts.emplace_back(parts_[i].name, numbers[i]);
    return counts;
  }

 private:
  static int64_t index_in(const Part& part, int64_t sample) {
    return part.samples.begin + part.sampler(sample, part.samples.length);
  }

  // Reads the run's sample to row `i`.
  void read(int64_t sample, int64_t i, const Batch& batch) const {
    const auto row_of = [&](const char* name) {
      return batch.at(name).data_ptr<int64_t>() + i * sequence_;
    };
    int64_t length = sequence_;
    Row row{.tokens = row_of("tokens"), .labels = nullptr, .lengths = &length};
    if (fields_.classes) {
      row.label = batch.at("labels").data_ptr<int64_t>() + i;
    } else {
      row.labels = row_of("labels");
    }
    if (fields_.documents) {
      row.documents = row_of("documents");
      row.positions = row_of("positions");
    }
    const auto place = mixture_.at(sample);
    const auto& part = parts_[place.source];
    part.sequences->read(index_in(part, place.sample), limit_, row);
    if (masking_) hide_tokens(*masking_, sample, sequence_, length, row);
    if (fields_.mask) {
      auto* mask = row_of("attention_mask");
      std::fill_n(mask, length, 1);
      std::fill(mask + length, mask + sequence_, 0);
    }
  }

  std::vector<Part> parts_;
  Mixture mixture_;
  Fields fields_;
  int64_t sequence_, global_;
  IdLimit limit_;
  std::optional<Masking> masking_;
};

// Warns about a file that is not the plain text that data.text takes.
void warn_of_format(const std::string& path) {
  const auto ending = std::filesystem::path(path).extension();
  const bool json = ending == ".jsonl" || ending == ".ndjson" || ending == ".json";
  if (!json && ending != ".arrow") return;
  log::once(log::Level::warn,
            fmt::format("data: {} is {}, which data.text learns byte for byte{}: {}", path,
                        json ? "JSON" : "binary", json ? ", with braces, quotes and keys" : "",
                        json ? "name it in data.jsonl" : "give a file with the texts alone"));
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

// Opens the files of the job's sources.
class Opener {
 public:
  Opener(const job::Job& job, const text::Tokenizer* tokenizer, bool warn)
      : data_(job.data), tokenizer_(tokenizer), warn_(warn) {}

  std::unique_ptr<Sequences> open(const job::SourceConfig& source, int64_t& tokens) const {
    auto documents = std::make_shared<Documents>();
    for (const auto& path : source.files) add(source, path, *documents);
    tokens = documents->tokens().size();
    if (data_.objective == "classification") return make_classified(documents, data_.sequence);
    if (data_.pack == "stream") return make_stream(documents, data_.sequence);
    return make_packed(documents, data_.sequence, data_.pack == "none");
  }

 private:
  void add(const job::SourceConfig& source, const std::string& path, Documents& documents) const {
    if (!source.tokens.empty()) {
      documents.add_file(path, data_.token_type == "uint16" ? 2 : 4);
      return;
    }
    const TokenCache cache{data_.tokenizer, cache_folder(), warn_};
    if (!source.text.empty()) {
      if (warn_) warn_of_format(path);
      // The texts of a stream are one text, unless an end is asked for.
      if (data_.pack == "stream" && data_.end_of_text.empty()) {
        if (data_.tokenizer == "bytes" && !text::is_compressed(path)) {
          documents.add_file(path, 1);
        } else {
          documents.add(path, tokenize_file(path, *tokenizer_, cache));
        }
        return;
      }
    }
    using Kind = CorpusOptions::Kind;
    CorpusOptions options;
    options.kind = !source.text.empty()    ? Kind::text
                   : !source.jsonl.empty() ? Kind::jsonl
                                           : Kind::conversations;
    options.tokenizer = data_.tokenizer;
    options.document = source.document;
    options.chat_template = data_.chat_template;
    options.end_of_text = text::end_of_text(*tokenizer_, data_.tokenizer, data_.end_of_text);
    options.skip_broken = data_.broken_lines == "skip";
    options.labels = data_.objective == "classification";
    auto corpus = open_corpus(path, *tokenizer_, options, cache);
    if (warn_ && corpus.skipped > 0) {
      log::once(log::Level::warn,
                fmt::format("data: {}: {} of {} lines give no document and are left out; the first "
                            "is {}",
                            path, corpus.skipped, corpus.skipped + std::ssize(corpus.ends),
                            corpus.first_skipped));
    }
    documents.add(path, std::move(corpus));
  }

  const job::DataConfig& data_;
  const text::Tokenizer* tokenizer_;
  bool warn_;
};

std::optional<Masking> masking_of(const job::Job& job, const text::Tokenizer* tokenizer,
                                  bool held_out) {
  if (job.data.objective != "masked") return std::nullopt;
  const auto& file = job.data.tokenizer;
  Masking masking{.mask = text::mask_token(*tokenizer, file),
                  .vocab = tokenizer->vocab(),
                  .special = {},
                  .seed = static_cast<uint64_t>(job.seed),
                  .held_out = held_out};
  for (const auto id : tokenizer->special_ids()) masking.special.insert(id);
  masking.special.insert(masking.mask);
  masking.special.insert(text::end_of_text(*tokenizer, file, job.data.end_of_text));
  return masking;
}

[[noreturn]] void refuse_short(const job::Job& job, const job::SourceConfig& source,
                               int64_t samples, int64_t tokens) {
  const auto name = source.name.empty() ? "data" : source.name;
  if (job.data.pack == "stream" && samples == 0 && tokens > job.data.sequence) {
    fail(
        "data",
        "{} must hold a token that is learned, in one of the windows of data.sequence = {} tokens, "
        "but none of its {} tokens is one: of conversations, answers alone are learned",
        name, job.data.sequence, tokens);
  }
  if (job.data.pack == "stream") {
    fail("data",
         "{} must hold at least one sample of data.sequence + 1 = {} tokens for training, but it "
         "holds {} tokens",
         name, job.data.sequence + 1, tokens);
  }
  fail("data",
       "{} must hold at least one sample for training, but its documents with {} tokens give {}, "
       "and data.validation = {} of these are held out",
       name, tokens, samples, job.data.validation);
}

}  // namespace

Data open_tokens(const job::Job& job, bool warn, const IdLimit& limit) {
  const auto sources = job.data.token_sources();
  const bool tokenized = std::ranges::any_of(
      sources, [](const auto& source) { return source.tokens.empty(); });
  const auto tokenizer = tokenized || job.data.objective == "masked"
                             ? text::make_tokenizer(job.data.tokenizer)
                             : nullptr;
  Data data;
  data.vocab = tokenizer ? tokenizer->vocab() : 0;
  const auto ids = smallest_limit(job, limit, data.vocab);
  if (data.vocab > ids.below) {
    fail("data", "ids of data.tokenizer must be below {} = {}, but {} has {} ids", ids.why,
         ids.below, job.data.tokenizer, data.vocab);
  }
  const Opener opener(job, tokenizer.get(), warn);
  std::vector<Part> training, held_out;
  std::vector<double> weights, held_out_weights;
  int64_t offset = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto& source = sources[i];
    int64_t tokens = 0;
    const std::shared_ptr<const Sequences> sequences = opener.open(source, tokens);
    const auto samples = sequences->size();
    const auto kept = static_cast<int64_t>(double(samples) * job.data.validation);
    const auto trained = samples - kept;
    if (trained < 1) refuse_short(job, source, samples, tokens);
    training.push_back({source.name, sequences, Range{0, trained}, offset, make_sampler(job, i)});
    weights.push_back(source.weight);
    if (kept > 0) {
      held_out.push_back({source.name, sequences, Range{trained, kept}, offset, sequential});
      held_out_weights.push_back(source.weight);
    }
    offset += samples;
  }
  data.fields = Fields(job.data).names();
  // As many batches as no held-out sample is in twice.
  double most = held_out.empty() ? 0 : std::numeric_limits<double>::infinity();
  double sum = 0;
  for (const auto weight : held_out_weights) sum += weight;
  for (size_t i = 0; i < held_out.size(); ++i) {
    most = std::min(most, double(held_out[i].samples.length) * sum / held_out_weights[i]);
  }
  data.validation.batches = static_cast<int64_t>(most + 1e-6) / job.batch.global;
  const Mixture mixture(held_out_weights, static_cast<uint64_t>(job.seed), /*in_order=*/true);
  for (size_t i = 0; i < held_out.size(); ++i) {
    const auto seen = [&] { return mixture.counts(data.validation.batches * job.batch.global)[i]; };
    while (seen() > held_out[i].samples.length) --data.validation.batches;
  }
  data.training = std::make_unique<TokenData>(job, std::move(training), weights, ids,
                                              masking_of(job, tokenizer.get(), false),
                                              /*held_out=*/false);
  if (data.validation.batches > 0) {
    data.validation.data = std::make_unique<TokenData>(job, std::move(held_out), held_out_weights,
                                                       ids, masking_of(job, tokenizer.get(), true),
                                                       /*held_out=*/true);
  }
  return data;
}

}  // namespace perigee::data
