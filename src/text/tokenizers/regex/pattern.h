// The syntax of the regular expressions of tokenizer files (Oniguruma's, as of Ruby): translated
// for PCRE2, with the relation of its characters, from which cuts of a text are proven safe.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace perigee::text {

// An atom matches one character.
struct Pattern {
  std::string translated;               // for PCRE2 with UTF, UCP
  std::vector<std::string> atoms;       // each a pattern of PCRE2
  std::vector<std::set<size_t>> after;  // atoms that may be tried on the character after this one's
  std::set<size_t> alone;               // atoms that can be a whole match by themselves
  // Whether `after` and `alone` say all: there is no look-behind, no anchor and no match of nothing.
  bool related = true;
};

// `joiners`: whether \w has U+200C and U+200D, as in Rust's regex. Throws Error with `where` for
// syntax that is not known to mean the same in PCRE2.
Pattern parse_pattern(std::string_view text, const std::string& where, bool joiners = false);

// Returns a pattern that matches the text; of an empty one, a pattern that matches nothing.
std::string literal_pattern(std::string_view text);

}  // namespace perigee::text
