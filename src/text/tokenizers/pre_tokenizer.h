// Pre-tokenizers: texts are split into words, which the model tokenizes one by one.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizers/reader.h"

namespace perigee::text {

struct Piece {
  std::string_view text;
  bool first = false;      // it begins the whole text
  bool continued = false;  // it is the part of a piece after a cut
};

// Pieces in order; none is empty.
struct Pieces {
  std::vector<Piece> list;
  std::deque<std::string> texts;  // of pieces that were changed
};

enum class Cut { boundary, joined, unknown };

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;

  virtual void split(Pieces& pieces) const = 0;

  // Returns whether every piece with characters `a` and `b` side by side is split between them
  // (`boundary`), or never, while both parts remain the same as without the other, and pieces apart
  // from that (`joined`); and sets `a` and `b` to their characters in the pieces.
  virtual Cut cut(char32_t& a, char32_t& b) const = 0;

  // Whether something is put before pieces.
  virtual bool prepends() const { return false; }

  // From now on, leaves out the last step where that writes bytes as characters (byte_level.h);
  // returns whether it is that: the caller does it for each different piece once.
  virtual bool leave_out_byte_level() { return false; }
};

// Throws Error for unknown kinds.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Reader& json);

// The kinds that split by a regular expression: Split, Whitespace, and GPT-2's.
std::unique_ptr<PreTokenizer> make_split(const Reader& json);
std::unique_ptr<PreTokenizer> make_whitespace();
std::unique_ptr<PreTokenizer> make_gpt2_split();

}  // namespace perigee::text
