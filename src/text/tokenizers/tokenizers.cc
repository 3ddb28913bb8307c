// A tokenizer.json as a Tokenizer: added tokens, normalizer, pre-tokenizer, model, decoder.
#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "base/fail.h"
#include "base/text/utf8.h"
#include "text/tokenizer.h"
#include "text/tokenizers/added_tokens.h"
#include "text/tokenizers/characters/byte_level.h"
#include "text/tokenizers/characters/unicode.h"
#include "text/tokenizers/decoder.h"
#include "text/tokenizers/json.h"
#include "text/tokenizers/models/model.h"
#include "text/tokenizers/normalizer.h"
#include "text/tokenizers/pre_tokenizer.h"
#include "text/tokenizers/tables/string_table.h"

namespace perigee::text {
namespace {

// Pieces of a text and their ids, which most texts repeat.
struct Words {
  static constexpr size_t kLongest = 200;          // bytes
  static constexpr size_t kMostBytes = 16U << 20;  // then it is emptied

  StringTable table;  // a piece: place in `ids` << 16 | number of ids
  std::vector<int32_t> ids;
};

class Json : public Tokenizer {
 public:
  explicit Json(const std::string& path) : Json(read_json(path), path) {}

  int64_t vocab() const override {
    return std::max(int64_t(model_->tokens().size()), added_->largest_id() + 1);
  }

  std::vector<int64_t> encode(std::string_view text) const override {
    return encode_part(text, false);
  }
  std::vector<int64_t> encode_rest(std::string_view text) const override {
    return encode_part(text, true);
  }
  std::vector<int64_t> encode_after(const std::vector<int64_t>& before,
                                    std::string_view text) const override {
    const auto* token = before.empty() ? nullptr : added_->token(before.back());
    if (!token) return Tokenizer::encode_after(before, text);
    auto ids = encode(*token + std::string(text));
    // With the text it may be another token.
    if (ids.empty() || ids.front() != before.back()) return encode_rest(text);
    ids.erase(ids.begin());
    return ids;
  }

  std::string decode(const std::vector<int64_t>& ids) const override {
    std::vector<std::string> tokens;
    const auto& known = model_->tokens();
    for (const auto id : ids) {
      if (const auto* token = added_->token(id)) {
        tokens.push_back(*token);
      } else if (id >= 0 && id < int64_t(known.size()) && !known[size_t(id)].empty()) {
        tokens.push_back(known[size_t(id)]);
      }
    }
    if (decoder_) decoder_->decode(tokens);
    std::string text;
    for (const auto& token : tokens) {
      if (!decoder_ && &token != tokens.data()) text += ' ';
      text += token;
    }
    return text;
  }

  int64_t token_id(std::string_view token) const override {
    const auto id = added_->id(token);
    return id >= 0 ? id : model_->id(token);
  }
  std::vector<int64_t> special_ids() const override { return added_->special_ids(); }

  size_t last_cut(std::string_view text, size_t limit) const override {
    for (size_t at = text.empty() ? 0 : std::min(limit, text.size() - 1); at > 0; --at) {
      const auto bytes = text.substr(at, 4);
      if ((static_cast<unsigned char>(bytes[0]) & 0xc0U) == 0x80) continue;
      size_t begin = at - 1;
      while (begin > 0 && at - begin < 4 &&
             (static_cast<unsigned char>(text[begin]) & 0xc0U) == 0x80) {
        --begin;
      }
      if (valid_length(text.substr(begin, at - begin)) != at - begin) continue;
      if (valid_length(bytes) == 0) continue;
      if (cuts(character_at(text, begin).code, character_at(bytes, 0).code)) return at;
    }
    return 0;
  }

 private:
  Json(const nlohmann::json& json, const std::string& path) {
    const Reader file(json, path);
    if (const auto version = file.text("version", "1.0"); version != "1.0") {
      file.at("version").wrong("\"1.0\"", fmt::format("is \"{}\"", version));
    }
    model_ = make_model(file.at("model"));
    if (file.has("normalizer")) normalizer_ = make_normalizer(file.at("normalizer"));
    if (file.has("pre_tokenizer")) splitter_ = make_pre_tokenizer(file.at("pre_tokenizer"));
    if (file.has("decoder")) decoder_ = make_decoder(file.at("decoder"));
    byte_level_ = splitter_ && splitter_->leave_out_byte_level();
    const auto added = file.has("added_tokens") ? file.at("added_tokens").list()
                                                : std::vector<Reader>();
    added_ = std::make_unique<AddedTokens>(added, *model_, normalizer_.get());
  }

  bool cuts(char32_t a, char32_t b) const {
    if (a >= 128 || b >= 128) return proves(a, b);
    auto& known = ascii_cuts_[size_t(a) * 128 + b];
    if (known == 0) known = proves(a, b) ? 1 : -1;
    return known > 0;
  }

  // Returns whether a text may be cut between characters `a` and `b`.
  bool proves(char32_t a, char32_t b) const {
    if (!added_->cut(a, b, false)) return false;
    if (normalizer_ && !normalizer_->cut(a, b)) return false;
    if (!added_->cut(a, b, true)) return false;
    const auto found = splitter_ ? splitter_->cut(a, b) : Cut::joined;
    return found == Cut::boundary || (found == Cut::joined && model_->cut(a, b));
  }

  std::vector<int64_t> encode_part(std::string_view text, bool continued) const {
    std::string repaired;
    if (valid_length(text) != text.size()) {
      Utf8Stream valid;
      repaired = valid.add(text);
      repaired += valid.end();
      text = repaired;
    }
    auto words = take_words();
    std::vector<int64_t> ids;
    ids.reserve(text.size() / 4);
    for (const auto& segment : added_->find(text, false)) {
      if (segment.id >= 0) {
        ids.push_back(segment.id);
      } else {
        encode_segment(text.substr(segment.begin, segment.end - segment.begin),
                       {{}, segment.begin == 0 && !continued, segment.begin == 0 && continued},
                       *words, ids);
      }
    }
    return_words(std::move(words));
    return ids;
  }

  // Appends the ids of a text without added tokens, which begins as `begin` says.
  void encode_segment(std::string_view text, const Piece& begin, Words& words,
                      std::vector<int64_t>& ids) const {
    std::string changed;
    if (normalizer_) {
      changed = text;
      normalizer_->apply(changed, begin.continued);
      text = changed;
    }
    for (const auto& segment : added_->find(text, true)) {
      if (segment.id >= 0) {
        ids.push_back(segment.id);
        continue;
      }
      const bool first = segment.begin == 0;
      Pieces pieces;
      pieces.list.push_back({text.substr(segment.begin, segment.end - segment.begin),
                             begin.first && first, begin.continued && first});
      if (splitter_) splitter_->split(pieces);
      for (const auto& piece : pieces.list) encode_piece(piece.text, words, ids);
    }
  }

  // A long piece is divided where the model allows that, so that its words are known, too.
  void encode_piece(std::string_view piece, Words& words, std::vector<int64_t>& ids) const {
    size_t done = 0;
    if (piece.size() > Words::kLongest && !byte_level_) {
      auto before = character_at(piece, 0);
      for (size_t at = before.length; at < piece.size();) {
        const auto c = character_at(piece, at);
        if (model_->cut(before.code, c.code)) {
          encode_word(piece.substr(done, at - done), words, ids);
          done = at;
        }
        before = c;
        at += c.length;
      }
    }
    encode_word(piece.substr(done), words, ids);
  }

  void encode_word(std::string_view word, Words& words, std::vector<int64_t>& ids) const {
    const bool kept = word.size() <= Words::kLongest;
    const auto known = kept ? words.table.find(word) : -1;
    size_t begin = words.ids.size(), count = 0;
    if (known >= 0) {
      begin = size_t(known >> 16);
      count = size_t(known & 0xffff);
    } else {
      model_->encode(byte_level_ ? to_byte_level(word) : word, words.ids);
      count = words.ids.size() - begin;
    }
    ids.insert(ids.end(), words.ids.begin() + int64_t(begin),
               words.ids.begin() + int64_t(begin + count));
    if (known >= 0) return;
    if (!kept) {
      words.ids.resize(begin);
      return;
    }
    words.table.set(word, int64_t(begin << 16 | count));
    if (words.table.bytes() + words.ids.size() * sizeof(int32_t) < Words::kMostBytes) return;
    words.table.clear();
    words.ids.clear();
  }

  std::unique_ptr<Words> take_words() const {
    const std::lock_guard lock(mutex_);
    if (free_words_.empty()) return std::make_unique<Words>();
    auto words = std::move(free_words_.back());
    free_words_.pop_back();
    return words;
  }

  void return_words(std::unique_ptr<Words> words) const {
    const std::lock_guard lock(mutex_);
    free_words_.push_back(std::move(words));
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Normalizer> normalizer_;
  std::unique_ptr<PreTokenizer> splitter_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<AddedTokens> added_;
  bool byte_level_ = false;  // pieces are bytes, which the model has as characters
  mutable std::array<std::atomic<int8_t>, 128 * 128> ascii_cuts_{};  // 1: yes, -1: no
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Words>> free_words_;  // one for each thread
};

}  // namespace
}  // namespace perigee::text

extern "C" void perigee_tokenizers(const std::string& path,
                                   std::unique_ptr<perigee::text::Tokenizer>& tokenizer) {
  tokenizer = std::make_unique<perigee::text::Json>(path);
}
