// `perigee tokenize`: a file's text to token ids, and back.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/fail.h"
#include "base/files/durable_file.h"
#include "base/log_format.h"
#include "base/text/bytes.h"
#include "base/text/depth.h"
#include "base/text/utf8.h"
#include "command.h"
#include "text/chat/samples.h"
#include "text/stream.h"

namespace perigee::command {
namespace {

struct TokenizeOptions {
  std::string file, tokenizer, chat_template;
  bool decode = false, messages = false;
  int64_t sequence = 0;  // of samples; 0: ids are printed
  OutputOptions output;
};

// Where the result goes in pieces: a file that appears when it is complete, or standard output.
class Result {
 public:
  explicit Result(const std::string& file) {
    if (!file.empty()) file_.emplace(file);
  }
  void write(std::string_view text) {
    file_ ? file_->write(text) : void(std::fwrite(text.data(), 1, text.size(), stdout));
  }
  void finish() {
    if (file_) file_->finish();
  }

 private:
  std::optional<DurableFile> file_;
};

// A file that is read in pieces, also a pipe.
class Input {
 public:
  explicit Input(const std::string& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) refuse();
  }
  ~Input() { ::close(fd_); }
  Input(const Input&) = delete;
  size_t read(char* bytes, size_t most) {
    for (;;) {
      const auto count = ::read(fd_, bytes, most);
      if (count >= 0) return static_cast<size_t>(count);
      if (errno != EINTR) refuse();
    }
  }

 private:
  [[noreturn]] void refuse() const {
    fail("command", "{} must be a readable file, but: {}", path_, std::strerror(errno));
  }
  std::string path_;
  int fd_;
};

uint64_t size_of(const std::string& path) {
  std::error_code ignored;
  const auto regular = std::filesystem::is_regular_file(path, ignored);
  return regular ? std::filesystem::file_size(path, ignored) : 0;
}

int encode(const TokenizeOptions& options, const text::Tokenizer& tokenizer) {
  Input input(options.file);
  const auto all = size_of(options.file);
  Result result(options.output.file);
  const bool json = options.output.json;
  uint64_t count = 0, bytes = 0;
  if (json) result.write("{\"ids\": [");
  text::Stream stream;
  stream.read = [&](char* to, size_t most) { return input.read(to, most); };
  stream.take = [&](std::span<const int64_t> ids) {
    std::string text;
    for (const auto id : ids) {
      if (count++ > 0) text += json ? ", " : " ";
      fmt::format_to(std::back_inserter(text), "{}", id);
    }
    result.write(text);
  };
  stream.progress = [&](uint64_t done) {
    bytes = done;
    log::progress(text::progress_line(options.file, done, all));
  };
  text::encode_stream(tokenizer, stream);
  log::progress("");
  result.write(json ? "]}\n" : "\n");
  result.finish();
  if (!options.output.file.empty()) {
    log::info("{} tokens of {} in {}", count, bytes_text(double(bytes)), options.output.file);
  }
  return 0;
}

// Prints a line {"ids": [...], "answers": [[begin, end], ...]} for each conversation of the file.
int print_conversations(const TokenizeOptions& options, const text::Tokenizer& tokenizer,
                        const text::ChatTemplate& chat) {
  Result result(options.output.file);
  text::encode_conversations(options.file, chat, tokenizer, [&](text::Document&& each) {
    auto answers = nlohmann::ordered_json::array();
    for (const auto& span : each.answers) answers.push_back({span.begin, span.end});
    result.write(nlohmann::ordered_json{{"ids", each.ids}, {"answers", answers}}.dump() + "\n");
  });
  result.finish();
  return 0;
}

// Writes the conversations of the file as samples.
int write_samples(const TokenizeOptions& options, const text::Tokenizer& tokenizer,
                  const text::ChatTemplate& chat) {
  text::Samples samples(options.sequence);
  text::encode_conversations(options.file, chat, tokenizer,
                             [&](text::Document&& each) { samples.add(each); });
  samples.write(options.output.file);
  if (samples.cut() > 0) {
    log::warn("{} of {} conversations have more than {} tokens and were cut", samples.cut(),
              samples.size(), options.sequence + 1);
  }
  if (samples.left_out() > 0) {
    log::warn("{} conversations were left out: they have no answer within {} tokens",
              samples.left_out(), options.sequence + 1);
  }
  log::info("{} samples with {} tokens of answers in {}", samples.size(), samples.learned(),
            options.output.file);
  return 0;
}

int encode_messages(const TokenizeOptions& options, const text::Tokenizer& tokenizer) {
  const text::ChatTemplate chat(options.chat_template, options.tokenizer, std::time(nullptr));
  return (options.sequence > 0 ? write_samples : print_conversations)(options, tokenizer, chat);
}

// Returns the ids of {"ids": [...]}, or of numbers with white space between them.
std::vector<int64_t> read_ids(const std::string& path) {
  const auto text = read_file(path);
  const auto wrong = [&](std::string_view got) {
    fail("command", "{} must have ids as `perigee tokenize` prints them, but {}", path, got);
  };
  std::vector<int64_t> ids;
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first != text.npos && text[first] == '{') {
    check_json_depth(text, "command", path);
    const auto value = nlohmann::json::parse(text, nullptr, false);
    if (value.is_discarded()) wrong("is no JSON");
    if (!value.contains("ids") || !value["ids"].is_array()) wrong("has no list \"ids\"");
    for (const auto& id : value["ids"]) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > INT64_MAX) wrong("has " + id.dump());
      ids.push_back(id.get<int64_t>());
    }
    return ids;
  }
  for (size_t at = first; at < text.size(); at = text.find_first_not_of(" \t\r\n", at)) {
    int64_t id = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), id);
    const auto length = static_cast<size_t>(end - text.data()) - at;
    at += length;
    const bool ends = at == text.size() || std::strchr(" \t\r\n", text[at]);
    if (error != std::errc() || id < 0 || !ends) wrong(fmt::format("has none at byte {}", at));
    ids.push_back(id);
  }
  return ids;
}

int decode(const TokenizeOptions& options, const text::Tokenizer& tokenizer) {
  const auto ids = read_ids(options.file);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < tokenizer.vocab()) continue;
    fail("command", "ids of {} must be below {}, but id {} of {} is {}", options.tokenizer,
         tokenizer.vocab(), i, options.file, ids[i]);
  }
  auto text = tokenizer.decode(ids);
  if (options.output.file.empty() && ::isatty(STDOUT_FILENO) == 1) {
    Utf8Stream valid;  // a terminal gets no other bytes
    text = valid.add(text) + valid.end();
  }
  if (options.output.json) {
    text = nlohmann::json{{"text", text}}.dump(-1, ' ', false,
                                               nlohmann::json::error_handler_t::replace) +
           "\n";
  }
  write_result(options.output, text);
  return 0;
}

}  // namespace

void add_tokenize_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<TokenizeOptions>();
  auto* sub = add_command(
      app, "tokenize", "print the token ids of a file's text, or the text of ids",
      {"perigee tokenize notes.txt --tokenizer llama/tokenizer.json --json",
       "perigee tokenize notes.ids --tokenizer llama/tokenizer.json --decode",
       "perigee tokenize chats.jsonl --tokenizer llama/tokenizer.json --messages "
       "--sequence 2048 -o chats.safetensors"});
  sub->add_option("FILE", options->file, "text; with --decode: ids")->required();
  sub->add_option("--tokenizer", options->tokenizer,
                  "\"bytes\", a tokenizer.json or a SentencePiece model")
      ->required();
  auto* decoded = sub->add_flag("--decode", options->decode,
                                "print the text of ids, special tokens included");
  auto* messages = sub->add_flag(
                          "--messages", options->messages,
                          "FILE has conversations as JSON lines: print their ids by the chat "
                          "template, and which of them are answers")
                       ->excludes(decoded);
  sub->add_option("--template", options->chat_template,
                  "the chat template's file (default: that of the tokenizer's folder)")
      ->needs(messages);
  add_output_options(*sub, options->output);
  add_integer(*sub, "--sequence", options->sequence,
              "write samples of so many tokens to the safetensors file of -o, for data.tensors")
      ->check(positive())
      ->needs(messages)
      ->needs("-o");
  sub->callback([options, &action] {
    action = [options] {
      const auto tokenizer = text::make_tokenizer(options->tokenizer);
      if (options->messages) return encode_messages(*options, *tokenizer);
      return options->decode ? decode(*options, *tokenizer) : encode(*options, *tokenizer);
    };
  });
}

}  // namespace perigee::command
