// Normalizers: texts are changed before they are split.
#pragma once

#include <memory>
#include <string>

#include "text/tokenizers/reader.h"

namespace perigee::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;

  // Changes valid UTF-8. `continued`: the text is the part after a cut.
  virtual void apply(std::string& text, bool continued) const = 0;

  // Returns whether the parts of every text that is cut between characters `a` and `b` are
  // normalized as the whole is, and sets these to the last and the first character of the
  // normalized parts; `a` to kUnknown where that depends on others.
  virtual bool cut(char32_t& a, char32_t& b) const = 0;
};

// Throws Error for unknown kinds.
std::unique_ptr<Normalizer> make_normalizer(const Reader& json);

// Normalizer "Precompiled": a SentencePiece model's table of replacements.
std::unique_ptr<Normalizer> make_precompiled(const Reader& json);

}  // namespace perigee::text
