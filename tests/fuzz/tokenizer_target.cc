// SentencePiece models (text/sentencepiece), by the library that reads them.
#include "tests/fuzz/target.h"
#include "text/tokenizer.h"

using namespace perigee;

PERIGEE_FUZZ_TARGET(tokenizer) {
  const auto tokenizer = text::make_tokenizer(fuzz::scratch_file("tokenizer.model", input));
  const auto ids = tokenizer->encode("a tokenizer of a text");
  for (const auto id : ids) {
    fuzz::require(id >= 0 && id < tokenizer->vocab(), "an id beyond the vocabulary");
  }
  tokenizer->decode(ids);
}
