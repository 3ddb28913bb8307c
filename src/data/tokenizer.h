// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace perigee::data {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual int64_t vocab() const = 0;
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  virtual std::string decode(const std::vector<int64_t>& tokens) const = 0;
};

// "bytes", or the path of a SentencePiece model. Throws Error when the model cannot be loaded.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

// Loads the plugin for SentencePiece models. Throws Error where it does not load.
void open_sentencepiece();

}  // namespace perigee::data
