// Tokenizers for a fuzzer that links one library of them (PERIGEE_TOKENIZERS: its entry) instead of
// loading it beside LibTorch.
#include "text/tokenizer.h"

extern "C" void PERIGEE_TOKENIZERS(const std::string& path,
                                   std::unique_ptr<perigee::text::Tokenizer>& tokenizer);

namespace perigee::text {

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  std::unique_ptr<Tokenizer> tokenizer;
  PERIGEE_TOKENIZERS(name, tokenizer);
  return tokenizer;
}

size_t Tokenizer::last_cut(std::string_view, size_t) const { return 0; }

}  // namespace perigee::text
