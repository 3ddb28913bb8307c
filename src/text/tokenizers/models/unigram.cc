// Unigram: the division of a word into tokens with the largest sum of scores.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "base/fail.h"
#include "text/tokenizers/characters/unicode.h"
#include "text/tokenizers/models/model.h"
#include "text/tokenizers/tables/pair_table.h"
#include "text/tokenizers/tables/vocabulary.h"

namespace perigee::text {
namespace {

// The penalty of an unknown character below the least score.
constexpr double kUnknownPenalty = 10;

class Unigram : public Model {
 public:
  explicit Unigram(const Reader& json) : fallback_(json.flag("byte_fallback", false)) {
    for (const auto& entry : json.at("vocab").list()) {
      if (!entry.value().is_array() || entry.value().size() != 2) {
        entry.wrong("a token and a score", "is not");
      }
      const auto pair = entry.list();
      const auto score = pair[1].number();
      vocabulary_.add(pair[0].text(), int64_t(scores_.size()));
      scores_.push_back(score);
      least_ = std::min(least_, score);
    }
    if (json.has("unk_id")) {
      unknown_ = int32_t(json.at("unk_id").integer());
      if (size_t(*unknown_) >= scores_.size()) {
        json.at("unk_id").wrong(fmt::format("below {}, the number of tokens", scores_.size()),
                                fmt::format("is {}", *unknown_));
      }
    }
    for (size_t id = 0; id < vocabulary_.tokens().size(); ++id) {
      const auto& token = vocabulary_.tokens()[id];
      if (!token.empty()) add_to_trie(token, int32_t(vocabulary_.id(token)));
    }
    for (size_t byte = 0; byte < bytes_.size(); ++byte) {
      bytes_[byte] = int32_t(vocabulary_.id(fmt::format("<0x{:02X}>", byte)));
    }
  }

  int64_t id(std::string_view token) const override { return vocabulary_.id(token); }
  const std::vector<std::string>& tokens() const override { return vocabulary_.tokens(); }
  size_t size() const override { return scores_.size(); }

  void encode(std::string_view word, std::vector<int32_t>& ids) const override {
    struct Node {  // the best path to a place
      double score = 0;
      int64_t begin = -1;  // of its last token
      int32_t id = 0;
    };
    std::vector<Node> best(word.size() + 1);
    for (size_t at = 0; at < word.size();) {
      const auto score = best[at].score;
      const auto length = character_at(word, at).length;
      const auto offer = [&](size_t end, double more, int32_t id) {
        auto& node = best[end];
        if (node.begin >= 0 && more + score <= node.score) return;
        node = {more + score, int64_t(at), id};
      };
      bool single = false;
      int32_t node = 0;
      for (size_t end = at; end < word.size();) {
        const auto* next = trie_.find(PairTable::key(uint32_t(node), byte(word[end])));
        if (!next) break;
        ++end;
        node = next->first;
        if (next->second < 0) continue;
        offer(end, scores_[size_t(next->second)], next->second);
        single |= end - at == length;
      }
      if (!single) offer(at + length, least_ - kUnknownPenalty, unknown_id());
      at += length;
    }
    struct Span {
      size_t begin, end;
    };
    std::vector<Span> spans;  // from the end; neighbouring unknown characters are one
    bool open = false;
    for (size_t end = word.size(); end > 0;) {
      const auto& node = best[end];
      const bool unknown = unknown_ && node.id == *unknown_;
      if (unknown && open) {
        spans.back().begin = size_t(node.begin);
      } else {
        spans.push_back({size_t(node.begin), end});
      }
      open = unknown;
      end = size_t(node.begin);
    }
    for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
      add(word.substr(span->begin, span->end - span->begin), ids);
    }
  }

 private:
  static uint32_t byte(char c) { return static_cast<unsigned char>(c); }

  void add_to_trie(std::string_view token, int32_t id) {
    int32_t node = 0;
    for (size_t i = 0; i < token.size(); ++i) {
      auto& next = trie_[PairTable::key(uint32_t(node), byte(token[i]))];
      if (next.first < 0) next.first = ++nodes_;
      node = next.first;
      if (i + 1 == token.size()) next.second = id;
    }
  }

  int32_t unknown_id() const {
    if (!unknown_) {
      fail("tokenizer",
           "model.unk_id must be given for texts with characters of no token, but is "
           "not");
    }
    return *unknown_;
  }

  void add(std::string_view part, std::vector<int32_t>& ids) const {
    if (const auto id = vocabulary_.id(part); id >= 0) {
      ids.push_back(int32_t(id));
      return;
    }
    const bool bytes = fallback_ &&
                       std::ranges::all_of(part, [&](char c) { return bytes_[byte(c)] >= 0; });
    if (!bytes) {
      ids.push_back(unknown_id());
      return;
    }
    for (const char c : part) ids.push_back(bytes_[byte(c)]);
  }

  Vocabulary vocabulary_;
  std::vector<double> scores_;
  double least_ = std::numeric_limits<double>::infinity();
  std::optional<int32_t> unknown_;
  bool fallback_;
  PairTable trie_;  // (node, byte): next node, id of the token that ends there
  int32_t nodes_ = 0;
  std::array<int32_t, 256> bytes_{};  // ids of <0x00> to <0xFF>
};

}  // namespace

std::unique_ptr<Model> make_unigram(const Reader& json) { return std::make_unique<Unigram>(json); }

}  // namespace perigee::text
