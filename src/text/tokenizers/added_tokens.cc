#include "text/tokenizers/added_tokens.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log_once.h"
#include "text/tokenizers/characters/unicode.h"

namespace perigee::text {
namespace {

uint32_t byte(char c) { return static_cast<unsigned char>(c); }

}  // namespace

AddedTokens::AddedTokens(const std::vector<Reader>& json, const Model& model,
                         const Normalizer* normalizer) {
  std::unordered_map<std::string, int64_t> ids;
  std::vector<std::pair<Token, bool>> special, other;  // with `normalized`
  for (const auto& entry : json) {
    Token token;
    token.text = entry.at("content").text();
    if (token.text.empty()) continue;
    token.single_word = entry.flag("single_word", false);
    token.strip_left = entry.flag("lstrip", false);
    token.strip_right = entry.flag("rstrip", false);
    const bool is_special = entry.flag("special", false);
    const bool normalized = entry.flag("normalized", !is_special);
    if (const auto known = ids.find(token.text); known != ids.end()) {
      token.id = known->second;
    } else if (const auto id = model.id(token.text); id >= 0) {
      token.id = id;
    } else {
      token.id = std::max(largest_ + 1, int64_t(model.size()));
    }
    if (entry.has("id") && entry.at("id").integer() != token.id) {
      log::once(log::Level::warn,
                fmt::format("tokenizer: {} has the id {}, after all tokens before it, and not {}",
                            entry.place(), token.id, entry.at("id").integer()));
    }
    ids[token.text] = token.id;
    texts_[token.id] = token.text;
    largest_ = std::max(largest_, token.id);
    if (is_special) special_.push_back(token.id);
    (is_special ? special : other).emplace_back(token, normalized);
  }
  special.insert(special.end(), other.begin(), other.end());
  for (auto& [token, normalized] : special) {
    if (normalized && normalizer) normalizer->apply(token.text, false);
    if (!token.text.empty()) sets_[normalized].add(token);
  }
}

int64_t AddedTokens::id(std::string_view text) const {
  const auto found = std::ranges::find(
      texts_, text, [](const auto& each) { return std::string_view(each.second); });
  return found == texts_.end() ? -1 : found->first;
}

void AddedTokens::Set::add(const Token& token) {
  int32_t node = 0;
  for (size_t i = 0; i < token.text.size(); ++i) {
    auto& next = trie[PairTable::key(uint32_t(node), byte(token.text[i]))];
    if (next.first < 0) next.first = ++nodes;
    node = next.first;
    if (i + 1 == token.text.size() && next.second < 0) next.second = int32_t(tokens.size());
  }
  first_bytes[byte(token.text[0])] = true;
  strips |= token.strip_left || token.strip_right;
  char32_t before = kUnknown;
  for (size_t at = 0; at < token.text.size();) {
    const auto c = character_at(token.text, at);
    before == kUnknown ? first[c.code].first = 1
                       : neighbours[PairTable::key(before, c.code)].first = 1;
    before = c.code;
    at += c.length;
  }
  last[before].first = 1;
  tokens.push_back(token);
}

int32_t AddedTokens::Set::longest(std::string_view text, size_t at) const {
  int32_t found = -1, node = 0;
  for (; at < text.size(); ++at) {
    const auto* next = trie.find(PairTable::key(uint32_t(node), byte(text[at])));
    if (!next) break;
    node = next->first;
    if (next->second >= 0) found = next->second;
  }
  return found;
}

const std::string* AddedTokens::token(int64_t id) const {
  const auto found = texts_.find(id);
  return found == texts_.end() ? nullptr : &found->second;
}

std::vector<Segment> AddedTokens::find(std::string_view text, bool normalized) const {
  const auto& set = sets_[normalized];
  std::vector<Segment> segments;
  size_t done = 0;
  for (size_t at = 0; !set.tokens.empty() && at < text.size();) {
    const auto index = set.first_bytes[byte(text[at])] ? set.longest(text, at) : -1;
    if (index < 0) {
      ++at;
      continue;
    }
    const auto& token = set.tokens[size_t(index)];
    size_t begin = at, end = at + token.text.size();
    at = end;
    const bool within = (begin > 0 && is_word(character_before(text, begin).code)) ||
                        (end < text.size() && is_word(character_at(text, end).code));
    if (token.single_word && within) continue;
    while (token.strip_left && begin > done && is_space(character_before(text, begin).code)) {
      begin -= character_before(text, begin).length;
    }
    while (token.strip_right && end < text.size() && is_space(character_at(text, end).code)) {
      end += character_at(text, end).length;
    }
    if (begin > done) segments.push_back({done, begin, -1});
    segments.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) segments.push_back({done, text.size(), -1});
  return segments;
}

bool AddedTokens::cut(char32_t a, char32_t b, bool normalized) const {
  const auto& set = sets_[normalized];
  if (set.tokens.empty()) return true;
  if (a == kUnknown || (set.strips && is_space(a))) return false;
  return !set.last.find(a) && !set.first.find(b) && !set.neighbours.find(PairTable::key(a, b));
}

}  // namespace perigee::text
