// Byte pair encoding: neighbours merge in the order of the list of merges.
#include <algorithm>
#include <array>
#include <mutex>

#include "base/fail.h"
#include "text/tokenizers/characters/unicode.h"
#include "text/tokenizers/models/model.h"
#include "text/tokenizers/tables/pair_table.h"
#include "text/tokenizers/tables/vocabulary.h"

namespace perigee::text {
namespace {

// A merge that may happen: earlier ranks come first, and then earlier places.
struct Merge {
  int32_t rank, place, id;
  bool operator<(const Merge& other) const {  // of a heap with the least on top
    return rank != other.rank ? rank > other.rank : place > other.place;
  }
};

struct Symbol {
  int32_t id, before, after;  // after: -1 at the end; id: -1 once merged into the one before
};

class Bpe : public Model {
 public:
  explicit Bpe(const Reader& json)
      : vocabulary_(json.at("vocab")),
        prefix_(json.text("continuing_subword_prefix", "")),
        suffix_(json.text("end_of_word_suffix", "")),
        unknown_(json.text("unk_token", "")),
        has_unknown_(json.has("unk_token")),
        fuse_(json.flag("fuse_unk", false)),
        fallback_(json.flag("byte_fallback", false)),
        ignore_merges_(json.flag("ignore_merges", false)) {
    if (json.has("dropout") && json.at("dropout").number() != 0) {
      json.at("dropout").wrong("0, since the same text must have the same ids",
                               "is " + json.at("dropout").value().dump());
    }
    read_merges(json.at("merges"));
    for (size_t c = 0; c < low_.size(); ++c) {
      std::string text;
      append(text, static_cast<char32_t>(c));
      low_[c] = int32_t(vocabulary_.id(text));
    }
    for (size_t byte = 0; byte < bytes_.size(); ++byte) {
      bytes_[byte] = int32_t(vocabulary_.id(fmt::format("<0x{:02X}>", byte)));
    }
  }

  int64_t id(std::string_view token) const override { return vocabulary_.id(token); }
  const std::vector<std::string>& tokens() const override { return vocabulary_.tokens(); }
  size_t size() const override { return vocabulary_.size(); }

  void encode(std::string_view word, std::vector<int32_t>& ids) const override {
    if (ignore_merges_) {
      if (const auto whole = vocabulary_.id(word); whole >= 0) {
        ids.push_back(int32_t(whole));
        return;
      }
    }
    const auto begin = ids.size();
    add_symbols(word, ids);
    ids.size() - begin <= 32 ? merge_short(ids, begin) : merge_long(ids, begin);
  }

  // No merge joins two characters that are side by side in no token. Characters that are no tokens
  // may become one unknown token, or bytes. Merges are of ids, also of other tokens of that id.
  bool cut(char32_t a, char32_t b) const override {
    if (!prefix_.empty() || !suffix_.empty() || a == kUnknown) return false;
    if (vocabulary_.has_shared_ids()) return false;
    if (character_id(a) < 0 || character_id(b) < 0) return false;
    std::call_once(neighbours_once_, [&] {
      for (const auto& token : vocabulary_.tokens()) {
        char32_t before = kUnknown;
        for (size_t at = 0; at < token.size();) {
          const auto c = character_at(token, at);
          if (before != kUnknown) neighbours_[PairTable::key(before, c.code)].first = 1;
          before = c.code;
          at += c.length;
        }
      }
    });
    return !neighbours_.find(PairTable::key(a, b));
  }

 private:
  void read_merges(const Reader& json) {
    const auto& list = json.value();
    if (!list.is_array()) json.wrong("a list", fmt::format("is {}", list.type_name()));
    merges_ = PairTable(list.size());
    int32_t rank = 0;
    for (const auto& merge : list) {
      const auto wrong = [&](std::string_view rule, std::string_view got) {
        Reader(merge, json.place(), fmt::format("[{}]", rank)).wrong(rule, got);
      };
      std::string left, right;
      if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        const auto space = text.find(' ');
        if (text.starts_with("#version")) continue;
        if (space == text.npos || text.find(' ', space + 1) != text.npos) {
          wrong("two tokens with a space between them", fmt::format("is \"{}\"", text));
        }
        left = text.substr(0, space);
        right = text.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0];
        right = merge[1];
      } else {
        wrong("two tokens", "is " + merge.dump().substr(0, 80));
      }
      const auto joined = left + right.substr(std::min(prefix_.size(), right.size()));
      for (const auto& token : {left, right, joined}) {
        if (vocabulary_.id(token) >= 0) continue;
        wrong("of tokens in model.vocab", fmt::format("\"{}\" is not there", token));
      }
      auto& entry =
          merges_[PairTable::key(uint32_t(vocabulary_.id(left)), uint32_t(vocabulary_.id(right)))];
      entry.first = rank++;
      entry.second = int32_t(vocabulary_.id(joined));
    }
  }

  int64_t character_id(char32_t c) const {
    if (c < low_.size()) return low_[c];
    std::string text;
    append(text, c);
    return vocabulary_.id(text);
  }

  // Appends the ids of a word's characters.
  void add_symbols(std::string_view word, std::vector<int32_t>& ids) const {
    bool unknown = false;
    const bool plain = prefix_.empty() && suffix_.empty();
    for (size_t at = 0; at < word.size();) {
      const auto c = character_at(word, at);
      const auto character = word.substr(at, c.length);
      int64_t id = -1;
      std::string text;
      if (plain) {
        id = c.code < low_.size() ? low_[c.code] : vocabulary_.id(character);
      } else {
        if (at > 0) text = prefix_;
        text += character;
        if (at + c.length == word.size()) text += suffix_;
        id = vocabulary_.id(text);
      }
      at += c.length;
      if (id >= 0) {
        if (unknown) ids.push_back(unknown_id());
        unknown = false;
        ids.push_back(int32_t(id));
        continue;
      }
      if (fallback_ && add_bytes(plain ? character : std::string_view(text), ids)) continue;
      if (!has_unknown_) continue;
      if (unknown && !fuse_) ids.push_back(unknown_id());
      unknown_id();
      unknown = true;
    }
    if (unknown) ids.push_back(unknown_id());
  }

  bool add_bytes(std::string_view text, std::vector<int32_t>& ids) const {
    for (const char byte : text) {
      if (bytes_[static_cast<unsigned char>(byte)] < 0) return false;
    }
    for (const char byte : text) ids.push_back(bytes_[static_cast<unsigned char>(byte)]);
    return true;
  }

  int32_t unknown_id() const {
    const auto id = vocabulary_.id(unknown_);
    if (id < 0) {
      fail("tokenizer", "model.unk_token must be a token of model.vocab, but is \"{}\"", unknown_);
    }
    return int32_t(id);
  }

  const PairTable::Entry* find(int32_t left, int32_t right) const {
    return merges_.find(PairTable::key(uint32_t(left), uint32_t(right)));
  }

  // Merges ids[begin...] by looking for the earliest merge again and again.
  void merge_short(std::vector<int32_t>& ids, size_t begin) const {
    std::array<const PairTable::Entry*, 32> merges{};
    auto* word = ids.data() + begin;
    size_t size = ids.size() - begin;
    for (size_t i = 0; i + 1 < size; ++i) merges[i] = find(word[i], word[i + 1]);
    while (size > 1) {
      size_t best = size;
      for (size_t i = 0; i + 1 < size; ++i) {
        if (merges[i] && (best == size || merges[i]->first < merges[best]->first)) best = i;
      }
      if (best == size) break;
      word[best] = merges[best]->second;
      std::copy(word + best + 2, word + size, word + best + 1);
      std::copy(merges.begin() + best + 1, merges.begin() + size - 1, merges.begin() + best);
      --size;
      if (best > 0) merges[best - 1] = find(word[best - 1], word[best]);
      merges[best] = best + 1 < size ? find(word[best], word[best + 1]) : nullptr;
    }
    ids.resize(begin + size);
  }

  void merge_long(std::vector<int32_t>& ids, size_t begin) const {
    const auto count = int32_t(ids.size() - begin);
    std::vector<Symbol> symbols;
    symbols.reserve(size_t(count));
    for (int32_t i = 0; i < count; ++i) {
      symbols.push_back({ids[begin + size_t(i)], i - 1, i + 1 < count ? i + 1 : -1});
    }
    std::vector<Merge> heap;
    const auto push = [&](int32_t place) {
      const auto& symbol = symbols[size_t(place)];
      if (symbol.after < 0) return;
      const auto* merge = find(symbol.id, symbols[size_t(symbol.after)].id);
      if (!merge) return;
      heap.push_back({merge->first, place, merge->second});
      std::push_heap(heap.begin(), heap.end());
    };
    for (int32_t i = 0; i < count; ++i) push(i);
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end());
      const auto top = heap.back();
      heap.pop_back();
      auto& symbol = symbols[size_t(top.place)];
      if (symbol.id < 0 || symbol.after < 0) continue;
      auto& next = symbols[size_t(symbol.after)];
      const auto* merge = find(symbol.id, next.id);
      if (!merge || merge->second != top.id) continue;  // one of the two has merged since
      symbol.id = top.id;
      symbol.after = next.after;
      next.id = -1;
      if (symbol.after >= 0) symbols[size_t(symbol.after)].before = top.place;
      if (symbol.before >= 0) push(symbol.before);
      push(top.place);
    }
    ids.resize(begin);
    for (const auto& symbol : symbols) {
      if (symbol.id >= 0) ids.push_back(symbol.id);
    }
  }

  Vocabulary vocabulary_;
  PairTable merges_;  // ids of two tokens: rank, id of the joined token
  std::string prefix_, suffix_, unknown_;
  bool has_unknown_, fuse_, fallback_, ignore_merges_;
  std::array<int32_t, 512> low_{};    // ids of the first characters
  std::array<int32_t, 256> bytes_{};  // ids of <0x00> to <0xFF>
  mutable std::once_flag neighbours_once_;
  mutable PairTable neighbours_;  // characters that are side by side in a token
};

}  // namespace

std::unique_ptr<Model> make_bpe(const Reader& json) { return std::make_unique<Bpe>(json); }

}  // namespace perigee::text
