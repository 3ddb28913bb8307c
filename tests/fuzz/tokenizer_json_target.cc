// tokenizer.json (text/tokenizers), with the rules that ids are below the vocabulary and do not
// depend on cuts.
#include "tests/fuzz/target.h"
#include "text/tokenizer.h"

using namespace perigee;

PERIGEE_FUZZ_TARGET(tokenizer_json) {
  const auto tokenizer = text::make_tokenizer(fuzz::scratch_file("tokenizer.json", input));
  const std::string_view text = "A tokenizer's  text,\n1234 \xce\xb1\xcc\x81\xe4\xb8\xad <s> \xff!";
  const auto ids = tokenizer->encode(text);
  for (const auto id : ids) {
    fuzz::require(id >= 0 && id < tokenizer->vocab(), "an id beyond the vocabulary");
  }
  if (const auto cut = tokenizer->last_cut(text, text.size() / 2); cut > 0) {
    auto parts = tokenizer->encode(text.substr(0, cut));
    const auto rest = tokenizer->encode_rest(text.substr(cut));
    parts.insert(parts.end(), rest.begin(), rest.end());
    fuzz::require(parts == ids, "ids that depend on a cut");
  }
  tokenizer->decode(ids);
}
