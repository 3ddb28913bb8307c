// Replacements of a pattern by a text, in normalizers and decoders.
#pragma once

#include <memory>
#include <string>

#include "text/tokenizers/reader.h"
#include "text/tokenizers/regex/regex.h"

namespace perigee::text {

// Returns the regular expression of a `pattern`: {"String": ...} or {"Regex": ...}.
Regex make_regex(const Reader& pattern);

class Replacement {
 public:
  explicit Replacement(const Reader& json);  // `pattern`, `content`
  void apply(std::string& text) const;
  bool cut(char32_t& a, char32_t& b) const;  // as Normalizer::cut

 private:
  std::string search_;  // or
  std::unique_ptr<Regex> regex_;
  std::string content_;
};

}  // namespace perigee::text
