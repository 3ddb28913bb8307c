#include "data/documents/corpus.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <deque>
#include <filesystem>

#include "base/fail.h"
#include "base/log.h"
#include "text/chat/conversation.h"
#include "text/documents/byte_source.h"
#include "text/documents/line_template.h"
#include "text/documents/lines.h"
#include "text/stream.h"

namespace perigee::data {
namespace {

using nlohmann::ordered_json;
using Kind = CorpusOptions::Kind;

// The version of the format, and of the way from lines to tokens.
constexpr int kFormat = 1;

// "Now" of chat templates, so that the tokens of a file do not depend on the day: noon of
// 1 January 2025, UTC.
constexpr std::time_t kNow = 1735732800;

static_assert(std::endian::native == std::endian::little, "corpora are little endian");

// The end of the file. Before it, each part from a multiple of 8 bytes on: ids, ends, answers,
// labels, first_skipped.
struct Footer {
  char magic[8] = {'p', 'e', 'r', 'i', 'd', 'o', 'c', 's'};
  uint64_t width = 0, tokens = 0, documents = 0, answers = 0, labels = 0, skipped = 0,
           message_bytes = 0;
};

// Writes documents in their order.
class CorpusWriter {
 public:
  CorpusWriter(const WriteBytes& write, int width, int64_t end_of_text)
      : write_(write), end_of_text_(end_of_text) {
    footer_.width = static_cast<uint64_t>(width);
  }

  void add(text::Document&& document) {
    for (const auto& answer : document.answers) {
      answers_.push_back({footer_.tokens + answer.begin, footer_.tokens + answer.end});
    }
    if (document.label >= 0) labels_.push_back(document.label);
    add_ids(document.ids);
    end_document();
  }
  void add_ids(std::span<const int64_t> ids) {
    if (ids.empty()) return;
    last_ = ids.back();
    footer_.tokens += ids.size();
    append_ids(ids, static_cast<int>(footer_.width), buffer_);
    if (buffer_.size() >= kBuffer) flush();
  }
  void end_document() {
    if (last_ != end_of_text_) add_ids(std::span(&end_of_text_, 1));
    last_ = -1;
    ends_.push_back(footer_.tokens);
  }
  void finish(int64_t skipped, const std::string& message) {
    flush();
    pad(footer_.tokens * footer_.width);
    write_list(ends_);
    write_list(answers_);
    write_list(labels_);
    write_(message);
    pad(message.size());
    footer_.documents = ends_.size();
    footer_.answers = answers_.size();
    footer_.labels = labels_.size();
    footer_.skipped = static_cast<uint64_t>(skipped);
    footer_.message_bytes = message.size();
    write_({reinterpret_cast<const char*>(&footer_), sizeof footer_});
  }

 private:
  static constexpr size_t kBuffer = 1 << 20;

  void flush() {
    write_(buffer_);
    buffer_.clear();
  }
  template <class T>
  void write_list(const std::deque<T>& list) {
    for (const auto& item : list) {
      buffer_.append(reinterpret_cast<const char*>(&item), sizeof item);
      if (buffer_.size() >= kBuffer) flush();
    }
    flush();
  }
  void pad(uint64_t written) { write_(std::string((8 - written % 8) % 8, '\0')); }

  const WriteBytes& write_;
  const int64_t end_of_text_;
  Footer footer_;
  std::string buffer_;
  // Of all documents of the file; these lists grow without a copy.
  std::deque<uint64_t> ends_;
  std::deque<TokenRange> answers_;
  std::deque<int64_t> labels_;
  int64_t last_ = -1;
};

// Returns the next `count` items of a mapped file.
template <class T>
std::span<const T> take(std::span<const std::byte>& rest, uint64_t count, const std::string& name) {
  const auto bytes = count * sizeof(T), padded = (bytes + 7) / 8 * 8;
  if (count > rest.size() / sizeof(T) || padded > rest.size()) {
    fail_run("data", "the cached documents {} must be complete, but are not: remove the file",
             name);
  }
  const auto* begin = reinterpret_cast<const T*>(rest.data());
  rest = rest.subspan(padded);
  return {begin, count};
}

Corpus read_corpus(const MappedFile& file, const std::string& name) {
  Footer footer;
  const Footer expected;
  const auto size = file.bytes.size();
  if (size >= sizeof footer) {
    std::memcpy(&footer, file.bytes.data() + size - sizeof footer, sizeof footer);
  }
  if (size < sizeof footer || std::memcmp(footer.magic, expected.magic, sizeof footer.magic) != 0) {
    fail_run("data", "the cached documents {} must be complete, but are not: remove the file",
             name);
  }
  auto rest = file.bytes.first(size - sizeof footer);
  Corpus corpus;
  const auto ids = take<std::byte>(rest, footer.tokens * footer.width, name);
  corpus.tokens = {file.owner, ids, static_cast<int>(footer.width)};
  corpus.ends = take<uint64_t>(rest, footer.documents, name);
  corpus.answers = take<TokenRange>(rest, footer.answers, name);
  corpus.labels = take<int64_t>(rest, footer.labels, name);
  const auto message = take<char>(rest, footer.message_bytes, name);
  corpus.first_skipped.assign(message.data(), message.size());
  corpus.skipped = static_cast<int64_t>(footer.skipped);
  return corpus;
}

int64_t label_of(const ordered_json& line) {
  const auto label = line.is_object() ? line.find("label") : line.end();
  if (!line.is_object() || label == line.end()) {
    fail("data", "a line must have the field \"label\", but has none");
  }
  if (!label->is_number_unsigned() || label->get<uint64_t>() > INT32_MAX) {
    fail("data", "the field \"label\" must be a class, a number from 0, but is {}", label->dump());
  }
  return label->get<int64_t>();
}

// Returns how a line becomes a document.
std::function<text::Document(const ordered_json&)> encoder(
    const text::Tokenizer& tokenizer, const CorpusOptions& options,
    const std::shared_ptr<const text::ChatTemplate>& chat) {
  if (options.kind == Kind::conversations) {
    return [&tokenizer, chat](const ordered_json& line) {
      text::check_conversation(line);
      return text::encode_conversation(*chat, tokenizer, line);
    };
  }
  return [&tokenizer, fields = text::LineTemplate(options.document),
          labels = options.labels](const ordered_json& line) {
    text::Document document;
    document.ids = tokenizer.encode(fields.render(line));
    if (labels) document.label = label_of(line);
    return document;
  };
}

// Returns the content of files that tokens follow from, besides the file of documents.
std::string settings_of(const CorpusOptions& options) {
  const auto content = [](const std::string& path) {
    std::error_code ignored;
    return path.empty() || !std::filesystem::exists(path, ignored) ? "" : hash_of_file(path);
  };
  const auto& tokenizer = options.tokenizer;
  const auto folder = std::filesystem::path(tokenizer).parent_path();
  std::string settings = fmt::format("{} {} {} {} {} {}", kFormat, int(options.kind),
                                     tokenizer == "bytes" ? tokenizer : content(tokenizer),
                                     options.end_of_text, options.skip_broken, options.labels);
  if (options.kind == Kind::jsonl) settings += " " + options.document;
  if (options.kind == Kind::conversations) {
    settings += " " + content(options.chat_template);
    if (tokenizer != "bytes") {
      settings += " " + content((folder / "chat_template.jinja").string());
      settings += " " + content((folder / "tokenizer_config.json").string());
    }
  }
  return settings;
}

void write_text(const std::string& path, const text::Tokenizer& tokenizer, CorpusWriter& writer) {
  const auto source = text::open_bytes(path);
  text::Stream stream;
  stream.read = [&](char* to, size_t most) { return source->read(to, most); };
  stream.take = [&](std::span<const int64_t> ids) { writer.add_ids(ids); };
  text::encode_stream(tokenizer, stream);
  writer.end_document();
  writer.finish(0, "");
}

}  // namespace

Corpus open_corpus(const std::string& path, const text::Tokenizer& tokenizer,
                   const CorpusOptions& options, const TokenCache& cache) {
  // Errors of a template come before those of files.
  std::shared_ptr<const text::ChatTemplate> chat;
  if (options.kind == Kind::conversations) {
    chat = std::make_shared<text::ChatTemplate>(options.chat_template, options.tokenizer, kNow);
  }
  const int width = tokenizer.vocab() <= 256 ? 1 : tokenizer.vocab() <= 65536 ? 2 : 4;
  const auto name = hash_of_text(hash_of_file(path) + settings_of(options)) + ".documents";
  const auto file = cached(cache, name, [&](const WriteBytes& write) {
    CorpusWriter writer(write, width, options.end_of_text);
    if (options.kind == Kind::text) return write_text(path, tokenizer, writer);
    const auto read = text::encode_lines(
        path, {.skip_broken = options.skip_broken, .progress = true},
        encoder(tokenizer, options, chat),
        [&](text::Document&& document) { writer.add(std::move(document)); });
    writer.finish(read.skipped, read.first_skipped);
  });
  auto corpus = read_corpus(file, name);
  corpus.only_answers = options.kind == Kind::conversations;
  return corpus;
}

}  // namespace perigee::data
