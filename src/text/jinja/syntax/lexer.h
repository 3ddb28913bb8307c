// A template's source as tokens: text outside of tags, after whitespace control, and words in tags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/values/value.h"

namespace perigee::text::jinja {

struct Token {
  enum class Kind {
    data,         // text outside of tags
    print_begin,  // {{
    print_end,
    block_begin,  // {%
    block_end,
    name,
    constant,  // a text or a number
    symbol,    // an operator or a bracket
    end,
  };
  Kind kind = Kind::end;
  std::string text;
  int line = 1;
  Value value;  // of a constant
};

// A Refusal at a line.
struct PlacedRefusal : Refusal {
  PlacedRefusal(int at, const std::string& text) : Refusal(text), line(at) {}
  int line;
};

// Throws PlacedRefusal where a tag or text does not end, or a character is of no token.
std::vector<Token> tokens_of(std::string_view source);

}  // namespace perigee::text::jinja
