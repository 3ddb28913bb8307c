// Files, defaults and checks of [data] and [[data.sources]].
#include "job/complete.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/fail.h"
#include "base/files/glob.h"
#include "job/keys.h"
#include "text/documents/line_template.h"

namespace perigee::job {
namespace {

using Patterns = std::vector<std::string>;

// The kinds of sources of tokens, in a table or in [data].
template <class Config>
std::vector<std::pair<std::string, const Patterns*>> kinds_of(const Config& config) {
  return {{"text", &config.text},
          {"tokens", &config.tokens},
          {"jsonl", &config.jsonl},
          {"conversations", &config.conversations}};
}

class DataCompleter {
 public:
  DataCompleter(Job& job, const Where& where) : job_(job), d_(job.data), where_(where) {}

  void run() {
    choose();
    d_.files.clear();
    for (size_t i = 0; i < d_.sources.size(); ++i) source(i);
    for (const auto& [kind, patterns] : kinds_of(d_))
      add_files("data." + kind, *patterns, d_.files);
    add_files("data.tensors", d_.tensors, d_.files);
    shared();
    documents();
    order();
    tokenizer();
  }

 private:
  template <class... Args>
  [[noreturn]] void wrong(std::string_view key, fmt::format_string<Args...> format,
                          Args&&... args) const {
    fail("job", "{}{}", where_(key), fmt::format(format, std::forward<Args>(args)...));
  }

  // Finds the key that says where samples come from.
  void choose() {
    Patterns given;
    for (const auto& [kind, patterns] : kinds_of(d_)) {
      if (!patterns->empty()) given.push_back(kind);
    }
    if (!d_.tensors.empty()) given.emplace_back("tensors");
    if (d_.synthetic) given.emplace_back("synthetic");
    if (!d_.sources.empty()) given.emplace_back("[[data.sources]]");
    if (given.size() > 1) {
      wrong("data", "data is one of {}, but got {}", kSources, fmt::join(given, " and "));
    }
    d_.synthetic = given.empty() || given[0] == "synthetic";
    given_ = given.empty() ? "synthetic" : given[0];
    tokens_ = given_ != "synthetic" && given_ != "tensors";
  }

  void source(size_t i) {
    auto& source = d_.sources[i];
    ListEntry entry{.source = source};
    for (const auto& key : keys()) {
      if (key.table != "data.sources") continue;
      check(key, ref(key, job_, entry), where_("data.sources"));
    }
    if (source.name.empty()) source.name = fmt::format("source {}", i + 1);
    if (source.document.empty()) source.document = d_.document;
    Patterns given;
    source.files.clear();
    for (const auto& [kind, patterns] : kinds_of(source)) {
      if (patterns->empty()) continue;
      given.push_back(kind);
      add_files("data.sources." + kind, *patterns, source.files);
    }
    if (given.size() != 1) {
      wrong("data.sources", "{} has one of text, tokens, jsonl and conversations, but got {}",
            source.name, given.empty() ? "none" : fmt::format("{}", fmt::join(given, " and ")));
    }
    for (size_t other = 0; other < i; ++other) {
      if (d_.sources[other].name != source.name) continue;
      wrong("data.sources", "data.sources have different names, but two are named \"{}\"",
            source.name);
    }
    for (const auto& file : source.files) {
      if (std::ranges::find(d_.files, file) == d_.files.end()) d_.files.push_back(file);
    }
    line_template(source.document, "data.sources");
  }

  void add_files(const std::string& key, const Patterns& patterns, Patterns& files) const {
    for (const auto& pattern : patterns) {
      const auto found = glob_files(pattern);
      if (found.empty()) {
        wrong(key, "{} names files, but none matches \"{}\"", key, pattern);
      }
      for (const auto& file : found) {
        const auto extension = std::filesystem::path(file).extension();
        if (key == "data.tensors" && (extension == ".npy" || extension == ".npz")) {
          wrong(key,
                "{} reads safetensors, not NumPy's files, but got {}: convert it, for example by "
                "Python's safetensors.numpy.save_file({{\"INPUT\": numpy.load(FILE)}}, "
                "\"FILE.safetensors\")",
                key, file);
        }
        if (key != "data.tensors" && extension == ".parquet") {
          wrong(key,
                "{} does not read Parquet, but got {}: convert it to JSON lines, for example by "
                "Python's pandas.read_parquet(FILE).to_json(\"FILE.jsonl.gz\", orient=\"records\", "
                "lines=True)",
                key, file);
        }
        if (std::ranges::find(files, file) == files.end()) files.push_back(file);
      }
    }
  }

  void line_template(const std::string& text, const char* key) const {
    try {
      const text::LineTemplate parsed(text);
    } catch (const Error& error) {
      wrong(key, "{}", std::string_view(error.what()).substr(std::string_view("[data] ").size()));
    }
  }

  // Keys of several kinds of data.
  void shared() const {
    if (d_.slice_files && (given_ == "synthetic" || !d_.sources.empty())) {
      wrong("data.slice_files", "data.slice_files divides files among ranks, but data is {}",
            given_);
    }
    if (!d_.batched.empty() && tokens_) {
      wrong("data.batched",
            "data.batched requires data.tensors or data.synthetic, but {}{} has only samples",
            d_.sources.empty() ? "data." : "", given_);
    }
    if (!d_.batched.empty() && d_.slice_files) {
      wrong("data.batched",
            "data.batched replicates inputs that are the same for all samples, but "
            "data.slice_files divides all of the files among the ranks");
    }
    if (d_.left_over != "share" && !d_.slice_files) {
      wrong("data.left_over", "data.left_over requires data.slice_files, but that is false");
    }
    const bool images_or_rows = job_.model.kind == "mlp" || job_.model.kind == "resnet";
    if (images_or_rows && tokens_) {
      wrong("data." + given_, "the kind {} learns from data.tensors or data.synthetic, but got {}",
            job_.model.kind, given_);
    }
  }

  bool any(Patterns SourceConfig::*kind) const {
    return std::ranges::any_of(d_.token_sources(),
                               [&](const auto& source) { return !(source.*kind).empty(); });
  }

  void documents() const {
    line_template(d_.document, "data.template");
    if (d_.pack != "stream" && (!tokens_ || any(&SourceConfig::tokens))) {
      wrong("data.pack",
            "data.pack = \"{}\" needs documents of text, jsonl or conversations, but got {}",
            d_.pack, tokens_ ? "tokens, whose documents are not known" : given_);
    }
    if (d_.objective != "causal" && !tokens_) {
      wrong("data.objective", "data.objective = \"{}\" needs tokens, but data is {}", d_.objective,
            given_);
    }
    if (d_.objective == "masked" && any(&SourceConfig::conversations)) {
      wrong("data.objective",
            "data.objective = \"masked\" learns hidden tokens, but of conversations only the "
            "answers are learned: use text, tokens or jsonl");
    }
    if (d_.objective == "classification") classification();
    if (!d_.chat_template.empty()) {
      if (!any(&SourceConfig::conversations)) {
        wrong("data.chat_template",
              "data.chat_template is of data.conversations, but there are none");
      }
      need_file("data.chat_template", d_.chat_template);
    }
  }

  void classification() const {
    for (const auto& source : d_.token_sources()) {
      if (!source.jsonl.empty()) continue;
      wrong("data.objective",
            "data.objective = \"classification\" reads the field \"label\" of jsonl, but got {}",
            given_);
    }
    if (d_.pack == "none") return;
    wrong("data.objective",
          "data.objective = \"classification\" has one document a sample (data.pack = \"none\"), "
          "but data.pack is \"{}\"",
          d_.pack);
  }

  void order() const {
    const auto& names = sampler_names();
    if (std::ranges::find(names, d_.sampler) == names.end()) {
      if (!d_.sampler.ends_with(".so")) {
        wrong("data.sampler", "data.sampler is one of {}, or a library NAME.so, but got \"{}\"{}",
              fmt::join(names, ", "), d_.sampler, did_you_mean(d_.sampler, names));
      }
      need_file("data.sampler", d_.sampler);
    }
    if (d_.synthetic && d_.sampler != "shuffle") {
      wrong("data.sampler",
            "data.sampler orders the samples of files, but data.synthetic has none: got \"{}\"",
            d_.sampler);
    }
    if (d_.shuffle_buffer > 0 && (d_.synthetic || d_.sampler != "shuffle")) {
      wrong("data.shuffle_buffer",
            "data.shuffle_buffer belongs to data.sampler = \"shuffle\" of files, but got {}",
            d_.synthetic ? "data.synthetic" : d_.sampler);
    }
  }

  void tokenizer() const {
    const auto& values = job_.model.values;
    if (d_.tokenizer != "bytes") {
      need_file("data.tokenizer", d_.tokenizer);
      return;
    }
    const auto vocab = values.contains("vocab") ? job_.model.integer("vocab") : 0;
    const bool bytes = any(&SourceConfig::text) || any(&SourceConfig::jsonl) ||
                       any(&SourceConfig::conversations);
    if (bytes && vocab > 0 && vocab < 256) {
      wrong("model.vocab", "model.vocab is at least 256 for the tokenizer bytes, but got {}",
            vocab);
    }
  }

  void need_file(std::string_view key, const std::string& path) const {
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) {
      wrong(key, "{} names a file, but there is no \"{}\"", key, path);
    }
  }

  Job& job_;
  DataConfig& d_;
  const Where& where_;
  std::string given_;    // the key that says where samples come from
  bool tokens_ = false;  // whether samples are tokens
};

}  // namespace

std::vector<SourceConfig> DataConfig::token_sources() const {
  if (!sources.empty()) return sources;
  const auto kinds = kinds_of(*this);
  if (std::ranges::all_of(kinds, [](const auto& kind) { return kind.second->empty(); })) return {};
  return {{.text = text,
           .tokens = tokens,
           .jsonl = jsonl,
           .conversations = conversations,
           .document = document,
           .files = files}};
}

void complete_data(Job& job, const Where& where) { DataCompleter(job, where).run(); }

}  // namespace perigee::job
