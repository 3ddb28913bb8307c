#include "base/text/depth.h"

#include <algorithm>
#include <cstddef>

#include "base/fail.h"

namespace perigee {
namespace {

constexpr int kDeepest = 200, kMostParts = 100;

// Returns the position after the string that begins at `at` with `quote`, one or three characters.
// A string of one line ends with it; the text's end ends all.
size_t after_string(std::string_view text, size_t at, std::string_view quote, bool escapes) {
  for (at += quote.size(); at < text.size(); ++at) {
    if (escapes && text[at] == '\\') {
      ++at;
    } else if (text.substr(at).starts_with(quote)) {
      at += quote.size();
      // A string of several lines may end with quotes of its own.
      const size_t last = quote.size() == 1 ? at : at + 2;
      while (at < last && at < text.size() && text[at] == quote[0]) ++at;
      return at;
    } else if (text[at] == '\n' && quote.size() == 1) {
      return at;
    }
  }
  return text.size();
}

bool is_key_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == ' ' || c == '\t';
}

}  // namespace

void check_json_depth(std::string_view text, std::string_view area, std::string_view name) {
  int depth = 0;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"') {
      at = after_string(text, at, "\"", true);
      continue;
    }
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > kDeepest) {
      fail(area, "{}: lists and objects are nested at most {} deep, but these are deeper", name,
           kDeepest);
    }
    ++at;
  }
}

void check_toml(std::string_view text, std::string_view area, std::string_view name) {
  int parts = 1;
  for (size_t at = 0; at < text.size();) {
    const auto rest = text.substr(at);
    const char c = text[at];
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
    } else if (rest.starts_with("\"\"\"")) {
      at = after_string(text, at, "\"\"\"", true);
    } else if (rest.starts_with("'''")) {
      at = after_string(text, at, "'''", false);
    } else if (c == '"' || c == '\'') {
      at = after_string(text, at, rest.substr(0, 1), c == '"');
    } else {
      parts = c == '.' ? parts + 1 : is_key_character(c) ? parts : 1;
      ++at;
    }
    if (parts > kMostParts) {
      fail(area, "{}: a key has at most {} parts, but one has more", name, kMostParts);
    }
  }
}

}  // namespace perigee
