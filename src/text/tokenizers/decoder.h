// Decoders: the texts of tokens become one text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/tokenizers/reader.h"

namespace perigee::text {

class Decoder {
 public:
  virtual ~Decoder() = default;

  // Changes the texts of tokens, which are joined afterwards.
  virtual void decode(std::vector<std::string>& tokens) const = 0;
};

// Throws Error for unknown kinds.
std::unique_ptr<Decoder> make_decoder(const Reader& json);

}  // namespace perigee::text
