// Definitions that the printer and the parser of the text form share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace perigee::graph {

// Returns one node's line, with `names` (by value) instead of the values' numbers.
std::string print_named(const Graph& graph, const Node& node,
                        const std::vector<std::string>& names);

constexpr std::string_view header = "perigee.graph/1";

inline bool is_word_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == ':' || c == '/' || c == '-' || c == '+' || c == '\'';
}

// Returns true for names that are written without quotes.
inline bool is_word(std::string_view text) {
  for (char c : text) {
    if (!is_word_character(c)) return false;
  }
  return !text.empty();
}

}  // namespace perigee::graph
