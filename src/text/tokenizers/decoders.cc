#include <cctype>
#include <numeric>

#include "text/tokenizers/characters/byte_level.h"
#include "text/tokenizers/characters/unicode.h"
#include "text/tokenizers/decoder.h"
#include "text/tokenizers/replace.h"

namespace perigee::text {
namespace {

using Tokens = std::vector<std::string>;

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  for (auto at = text.find(from); at != text.npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// Appends the bytes of a token of characters for bytes; the token itself where one is another.
void append_bytes(std::string& bytes, const std::string& token) {
  const auto before = bytes.size();
  for (size_t at = 0; at < token.size();) {
    const auto c = character_at(token, at);
    const int byte = byte_of(c.code);
    if (byte < 0) {
      bytes.resize(before);
      bytes += token;
      return;
    }
    bytes += static_cast<char>(byte);
    at += c.length;
  }
}

class ByteLevel : public Decoder {
  void decode(Tokens& tokens) const override {
    std::string bytes;
    for (const auto& token : tokens) append_bytes(bytes, token);
    tokens = {lossy_utf8(bytes)};
  }
};

class ByteFallback : public Decoder {
  void decode(Tokens& tokens) const override {
    Tokens result;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (valid_length(bytes) == bytes.size()) {
        result.push_back(bytes);
      } else {
        result.insert(result.end(), bytes.size(), "\xef\xbf\xbd");
      }
      bytes.clear();
    };
    for (auto& token : tokens) {
      if (const int byte = byte_token(token); byte >= 0) {
        bytes += static_cast<char>(byte);
        continue;
      }
      flush();
      result.push_back(std::move(token));
    }
    flush();
    tokens = std::move(result);
  }

  // Returns the byte of "<0x0A>", or -1.
  static int byte_token(const std::string& token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    int byte = 0;
    for (const char c : {token[3], token[4]}) {
      if (!std::isxdigit(static_cast<unsigned char>(c))) return -1;
      byte = 16 * byte + (c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return byte;
  }
};

class Fuse : public Decoder {
  void decode(Tokens& tokens) const override {
    tokens = {std::accumulate(tokens.begin(), tokens.end(), std::string())};
  }
};

class Bpe : public Decoder {
 public:
  explicit Bpe(const Reader& json) : suffix_(json.text("suffix", "</w>")) {}
  void decode(Tokens& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      replace_all(tokens[i], suffix_, i + 1 < tokens.size() ? " " : "");
    }
  }

 private:
  std::string suffix_;
};

class WordPiece : public Decoder {
 public:
  explicit WordPiece(const Reader& json)
      : prefix_(json.text("prefix", "##")), cleanup_(json.flag("cleanup", true)) {}
  void decode(Tokens& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      auto& token = tokens[i];
      if (i > 0 && token.starts_with(prefix_)) {
        token.erase(0, prefix_.size());
      } else if (i > 0) {
        token.insert(0, " ");
      }
      if (cleanup_) clean(token);
    }
  }

 private:
  static void clean(std::string& token) {
    constexpr const char* kRules[][2] = {{" .", "."},     {" ?", "?"},           {" !", "!"},
                                         {" ,", ","},     {" ' ", "'"},          {" n't", "n't"},
                                         {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"},
                                         {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [from, to] : kRules) replace_all(token, from, to);
  }

  std::string prefix_;
  bool cleanup_;
};

class Metaspace : public Decoder {
 public:
  explicit Metaspace(const Reader& json)
      : mark_(json.at("replacement").character()),
        drops_(json.has("prepend_scheme") ? json.text("prepend_scheme", "") != "never"
                                          : json.flag("add_prefix_space", true)) {}
  void decode(Tokens& tokens) const override {
    std::string mark;
    append(mark, mark_);
    for (size_t i = 0; i < tokens.size(); ++i) {
      replace_all(tokens[i], mark, i == 0 && drops_ ? "" : " ");
    }
  }

 private:
  char32_t mark_;
  bool drops_;
};

class Replace : public Decoder {
 public:
  explicit Replace(const Reader& json) : replacement_(json) {}
  void decode(Tokens& tokens) const override {
    for (auto& token : tokens) replacement_.apply(token);
  }

 private:
  Replacement replacement_;
};

// Removes a character up to so many times from both ends of each token.
class Strip : public Decoder {
 public:
  explicit Strip(const Reader& json)
      : start_(json.at("start").integer()), stop_(json.at("stop").integer()) {
    append(content_, json.at("content").character());
  }
  void decode(Tokens& tokens) const override {
    for (auto& token : tokens) {
      for (int64_t i = 0; i < start_ && token.starts_with(content_); ++i) {
        token.erase(0, content_.size());
      }
      for (int64_t i = 0; i < stop_ && token.ends_with(content_); ++i) {
        token.resize(token.size() - content_.size());
      }
    }
  }

 private:
  int64_t start_, stop_;
  std::string content_;
};

class Sequence : public Decoder {
 public:
  explicit Sequence(const Reader& json) {
    for (const auto& part : json.at("decoders").list()) parts_.push_back(make_decoder(part));
  }
  void decode(Tokens& tokens) const override {
    for (const auto& part : parts_) part->decode(tokens);
  }

 private:
  std::vector<std::unique_ptr<Decoder>> parts_;
};

}  // namespace

std::unique_ptr<Decoder> make_decoder(const Reader& json) {
  const auto kind = json.kind("type",
                              "BPEDecoder ByteFallback ByteLevel Fuse Metaspace Replace Sequence "
                              "Strip WordPiece");
  if (kind == "BPEDecoder") return std::make_unique<Bpe>(json);
  if (kind == "ByteFallback") return std::make_unique<ByteFallback>();
  if (kind == "ByteLevel") return std::make_unique<ByteLevel>();
  if (kind == "Fuse") return std::make_unique<Fuse>();
  if (kind == "Metaspace") return std::make_unique<Metaspace>(json);
  if (kind == "Replace") return std::make_unique<Replace>(json);
  if (kind == "Strip") return std::make_unique<Strip>(json);
  if (kind == "WordPiece") return std::make_unique<WordPiece>(json);
  return std::make_unique<Sequence>(json);
}

}  // namespace perigee::text
