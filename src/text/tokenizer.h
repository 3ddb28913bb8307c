// Text to token ids and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace perigee::text {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Returns the largest id plus one.
  virtual int64_t vocab() const = 0;

  // Returns the ids of a text, without special tokens around it. A byte that is of no character of
  // UTF-8 counts as U+FFFD, except as a token of "bytes".
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;

  // Returns the text of ids; an id without a token adds nothing.
  virtual std::string decode(const std::vector<int64_t>& tokens) const = 0;

  // Returns the id of the token of that text, or -1.
  virtual int64_t token_id(std::string_view /*token*/) const { return -1; }

  // Returns the ids of tokens that are no text: ends, unknown, masks.
  virtual std::vector<int64_t> special_ids() const { return {}; }

  // Returns the last place at most `limit`, and before the end of `text`, where it may be cut: its
  // ids are those of the part before the place, followed by encode_rest() of the part after it,
  // whatever follows `text`. 0: there is no such place, or none is known.
  virtual size_t last_cut(std::string_view text, size_t limit) const;

  // As encode(), for the part of a text after a cut.
  virtual std::vector<int64_t> encode_rest(std::string_view text) const { return encode(text); }

  // As encode(), for a text that is encoded apart from the one before it, whose ids are `before`:
  // after an added token of a tokenizer.json its ids are those in the whole text, with a prefix
  // where the tokenizer prepends one to each segment; elsewhere they are those of encode_rest().
  virtual std::vector<int64_t> encode_after(const std::vector<int64_t>& before,
                                            std::string_view text) const;
};

// "bytes", or the path of a tokenizer.json or a SentencePiece model. Throws Error when the file
// cannot be loaded.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

// Load the plugins that read these files. Throw Error where one does not load.
void open_sentencepiece();
void open_tokenizers();

}  // namespace perigee::text
