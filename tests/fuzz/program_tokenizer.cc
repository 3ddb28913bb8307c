// Tokenizers for the fuzzer, which links the library for SentencePiece instead of loading
// it beside LibTorch.
#include "text/tokenizer.h"

extern "C" void perigee_sentencepiece(const std::string& path,
                                      std::unique_ptr<perigee::text::Tokenizer>& tokenizer);

namespace perigee::text {

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  std::unique_ptr<Tokenizer> tokenizer;
  perigee_sentencepiece(name, tokenizer);
  return tokenizer;
}

size_t Tokenizer::last_cut(std::string_view, size_t) const { return 0; }

}  // namespace perigee::text
