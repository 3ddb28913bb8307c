// Tokens that are no text, by the files beside a tokenizer.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace perigee::text {

// Returns the id of the token that ends a text: the token `given`. Where that is "": eos_token of
// the tokenizer_config.json in the folder of the tokenizer's file, else the first of <|endoftext|>,
// </s>, <|end_of_text|>, <eos> and [SEP] that the tokenizer has; of "bytes", the byte 0. Throws
// Error where the tokenizer has no such token.
int64_t end_of_text(const Tokenizer& tokenizer, const std::string& file, const std::string& given);

// Returns the id of the token that hides others: mask_token of tokenizer_config.json, else [MASK] or
// <mask>. Throws Error where the tokenizer has none.
int64_t mask_token(const Tokenizer& tokenizer, const std::string& file);

}  // namespace perigee::text
