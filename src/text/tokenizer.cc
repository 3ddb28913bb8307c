#include "text/tokenizer.h"

#include <dlfcn.h>

#include <algorithm>

#include "base/fail.h"
#include "base/files/file.h"
#include "base/plugin.h"

namespace perigee::text {
namespace {

class Bytes : public Tokenizer {
 public:
  int64_t vocab() const override { return 256; }
  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int64_t> tokens;
    tokens.reserve(text.size());
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::string decode(const std::vector<int64_t>& tokens) const override {
    std::string text;
    for (const auto token : tokens) {
      if (token >= 0 && token < vocab()) text += static_cast<char>(token);
    }
    return text;
  }
  int64_t token_id(std::string_view token) const override {
    return token.size() == 1 ? static_cast<unsigned char>(token[0]) : -1;
  }
  size_t last_cut(std::string_view text, size_t limit) const override {
    return text.empty() ? 0 : std::min(limit, text.size() - 1);
  }
};

// Reads the file with this content.
using Load = void (*)(const std::string& path, std::unique_ptr<Tokenizer>& tokenizer);

// RTLD_DEEPBIND: the plugin's symbols come before LibTorch's (text/sentencepiece).
Load load_plugin(const std::string& name, const char* files) {
  return reinterpret_cast<Load>(open_plugin("data", files, name, name.c_str(), RTLD_DEEPBIND));
}

Load sentencepiece() {
  static const Load load = load_plugin("perigee_sentencepiece", "a SentencePiece tokenizer");
  return load;
}

Load tokenizers() {
  static const Load load = load_plugin("perigee_tokenizers", "a tokenizer.json");
  return load;
}

// A tokenizer.json is an object; a SentencePiece model begins with a byte below a space.
bool is_json(const std::string& path) {
  const auto text = read_file(path, "data");
  const auto first = text.find_first_not_of(" \t\r\n");
  return first != text.npos && text[first] == '{';
}

}  // namespace

size_t Tokenizer::last_cut(std::string_view, size_t) const { return 0; }

std::vector<int64_t> Tokenizer::encode_after(const std::vector<int64_t>& before,
                                             std::string_view text) const {
  return before.empty() ? encode(text) : encode_rest(text);
}

void open_sentencepiece() { sentencepiece(); }
void open_tokenizers() { tokenizers(); }

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_unique<Bytes>();
  std::unique_ptr<Tokenizer> tokenizer;
  (is_json(name) ? tokenizers() : sentencepiece())(name, tokenizer);
  return tokenizer;
}

}  // namespace perigee::text
