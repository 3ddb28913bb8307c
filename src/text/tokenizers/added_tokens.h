// Tokens that are found in a text before it is split: special ones, and those that a user added.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizers/models/model.h"
#include "text/tokenizers/normalizer.h"
#include "text/tokenizers/reader.h"
#include "text/tokenizers/tables/pair_table.h"

namespace perigee::text {

// A part of a text: a token, or other text (`id` -1).
struct Segment {
  size_t begin = 0, end = 0;
  int64_t id = -1;
};

class AddedTokens {
 public:
  // `json`: the list `added_tokens`. Throws Error. A token has the id of the model's token of that
  // text, or the next one after all others, as in the tokenizers library.
  AddedTokens(const std::vector<Reader>& json, const Model& model, const Normalizer* normalizer);

  // Returns the text of the token of an id, or nullptr.
  const std::string* token(int64_t id) const;

  // Returns the id of the token of that text, or -1.
  int64_t id(std::string_view text) const;

  const std::vector<int64_t>& special_ids() const { return special_; }

  int64_t largest_id() const { return largest_; }  // -1 without tokens

  // Returns the parts of a text: tokens of the text as it is, or of the normalized text.
  std::vector<Segment> find(std::string_view text, bool normalized) const;

  // Returns whether no token is on both sides of a cut between characters `a` and `b`, or at it.
  bool cut(char32_t a, char32_t b, bool normalized) const;

 private:
  struct Token {
    std::string text;
    int64_t id = 0;
    bool single_word = false, strip_left = false, strip_right = false;
  };

  // The tokens that are found in one form of the text.
  struct Set {
    std::vector<Token> tokens;
    PairTable trie;  // (node, byte): next node, index of the token that ends there
    int32_t nodes = 0;
    bool first_bytes[256] = {};
    PairTable neighbours, first, last;  // characters within tokens, and at their ends
    bool strips = false;

    void add(const Token& token);
    // Returns the longest token that begins at `at`, or -1.
    int32_t longest(std::string_view text, size_t at) const;
  };

  Set sets_[2];  // of the text, of the normalized text
  std::unordered_map<int64_t, std::string> texts_;
  std::vector<int64_t> special_;
  int64_t largest_ = -1;
};

}  // namespace perigee::text
