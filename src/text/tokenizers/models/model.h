// Models: words to ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizers/reader.h"

namespace perigee::text {

class Model {
 public:
  virtual ~Model() = default;

  // Appends the ids of a word, which is not empty. Throws Error where it has none.
  virtual void encode(std::string_view word, std::vector<int32_t>& ids) const = 0;

  // Returns a token's id, or -1.
  virtual int64_t id(std::string_view token) const = 0;

  // Returns the tokens in the order of their ids; "" where an id has none.
  virtual const std::vector<std::string>& tokens() const = 0;

  // Returns the number of tokens.
  virtual size_t size() const = 0;

  // Returns whether the ids of every word with characters `a` and `b` side by side are those of
  // its parts. Expensive the first time.
  virtual bool cut(char32_t, char32_t) const { return false; }
};

// Throws Error for unknown kinds.
std::unique_ptr<Model> make_model(const Reader& json);
std::unique_ptr<Model> make_bpe(const Reader& json);
std::unique_ptr<Model> make_unigram(const Reader& json);
std::unique_ptr<Model> make_word_level(const Reader& json);
std::unique_ptr<Model> make_word_piece(const Reader& json);

}  // namespace perigee::text
