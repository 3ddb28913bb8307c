// Tokenizers for the fuzzer, which links the library for SentencePiece instead of loading
// it beside LibTorch.
#include "data/tokenizer.h"

extern "C" void perigee_sentencepiece(const std::string& path,
                                      std::unique_ptr<perigee::data::Tokenizer>& tokenizer);

namespace perigee::data {

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  std::unique_ptr<Tokenizer> tokenizer;
  perigee_sentencepiece(name, tokenizer);
  return tokenizer;
}

}  // namespace perigee::data
