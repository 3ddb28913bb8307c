// WordPiece and WordLevel: words by their longest parts in the vocabulary, or whole.
#include <algorithm>

#include "base/fail.h"
#include "text/tokenizers/characters/unicode.h"
#include "text/tokenizers/models/model.h"
#include "text/tokenizers/tables/vocabulary.h"

namespace perigee::text {
namespace {

class WordLevel : public Model {
 public:
  explicit WordLevel(const Reader& json)
      : vocabulary_(json.at("vocab")), unknown_(json.text("unk_token", "<unk>")) {}

  int64_t id(std::string_view token) const override { return vocabulary_.id(token); }
  const std::vector<std::string>& tokens() const override { return vocabulary_.tokens(); }
  size_t size() const override { return vocabulary_.size(); }

  void encode(std::string_view word, std::vector<int32_t>& ids) const override {
    const auto id = vocabulary_.id(word);
    ids.push_back(id >= 0 ? int32_t(id) : unknown_id());
  }

 protected:
  int32_t unknown_id() const {
    const auto id = vocabulary_.id(unknown_);
    if (id < 0) {
      fail("tokenizer", "model.unk_token must be a token of model.vocab, but is \"{}\"", unknown_);
    }
    return int32_t(id);
  }

  Vocabulary vocabulary_;
  std::string unknown_;
};

class WordPiece : public WordLevel {
 public:
  explicit WordPiece(const Reader& json)
      : WordLevel(json),
        most_(json.has("max_input_chars_per_word") ? json.at("max_input_chars_per_word").integer()
                                                   : 100) {
    const auto prefix = json.text("continuing_subword_prefix", "##");
    unknown_ = json.text("unk_token", "[UNK]");
    for (const auto& token : vocabulary_.tokens()) {
      longest_ = std::max(longest_, token.size());
      if (!token.starts_with(prefix)) continue;
      later_.set(token.substr(prefix.size()), vocabulary_.id(token));
    }
  }

  void encode(std::string_view word, std::vector<int32_t>& ids) const override {
    int64_t characters = 0;
    for (const char c : word) characters += (static_cast<unsigned char>(c) & 0xc0U) != 0x80;
    const auto before = ids.size();
    for (size_t at = 0; characters <= most_ && at < word.size();) {
      int64_t id = -1;
      size_t end = word.size();
      while (end > at) {
        if (end - at <= longest_) {
          const auto part = word.substr(at, end - at);
          id = at == 0 ? vocabulary_.id(part) : later_.find(part);
          if (id >= 0) break;
        }
        end -= character_before(word, end).length;
      }
      if (id < 0) {
        ids.resize(before);
        break;
      }
      ids.push_back(int32_t(id));
      at = end;
    }
    if (ids.size() == before) ids.push_back(unknown_id());
  }

 private:
  int64_t most_;
  size_t longest_ = 0;
  StringTable later_;  // the tokens within words, without their prefix
};

}  // namespace

std::unique_ptr<Model> make_word_level(const Reader& json) {
  return std::make_unique<WordLevel>(json);
}
std::unique_ptr<Model> make_word_piece(const Reader& json) {
  return std::make_unique<WordPiece>(json);
}

std::unique_ptr<Model> make_model(const Reader& json) {
  std::string kind;
  if (json.has("type")) {
    kind = json.kind("type", "BPE Unigram WordLevel WordPiece");
  } else {  // files of early versions
    kind = json.has("merges")                      ? "BPE"
           : json.at("vocab").value().is_array()   ? "Unigram"
           : json.has("continuing_subword_prefix") ? "WordPiece"
                                                   : "WordLevel";
  }
  if (kind == "BPE") return make_bpe(json);
  if (kind == "Unigram") return make_unigram(json);
  return kind == "WordPiece" ? make_word_piece(json) : make_word_level(json);
}

}  // namespace perigee::text
