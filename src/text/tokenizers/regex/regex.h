// Regular expressions of tokenizer files, by PCRE2's compiler to machine code.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace perigee::text {

class Regex {
 public:
  // `pattern`: of parse_pattern(). `where`: the place in the file, for errors. Throws Error.
  Regex(std::string_view pattern, const std::string& where, bool joiners = false);
  ~Regex();
  Regex(Regex&&) noexcept;

  // Calls `match(begin, end)` for all matches of valid UTF-8, from the left. A match of nothing
  // directly after another match is none. Throws Error where a match exceeds a limit of PCRE2.
  void find_all(std::string_view text, const std::function<void(size_t, size_t)>& match) const;

  // Each returns whether something is proven for every text in which `b` follows `a`.
  // No match has both, and none depends on the one and is before or after the other:
  bool separates(char32_t a, char32_t b) const;
  // Moreover, a match begins at `b`:
  bool begins_at(char32_t a, char32_t b) const;
  // The character is in no match:
  bool ignores(char32_t c) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::text
