// Text files tokenized once per host: the token file goes to the cache folder, where all
// ranks map it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "text/tokenizer.h"

namespace perigee::data {

// Raw little-endian token ids of `width` bytes each, as data.tokens holds them.
struct TokenBytes {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
  int width = 4;
};

struct TokenCache {
  std::string model;   // the tokenizer's file
  std::string folder;  // its subfolder tokens has the files; "": there is none
  bool warn = true;    // one line where tokens are not cached
};

// Returns the tokens of a text file by the tokenizer of a file. They are
// cached under a name that follows from both files' content, as .u16 or
// (from 65,537 ids on) .u32. Where they are not yet cached, the first process writes a temporary
// file and renames it, and the others wait. Where the folder cannot be written, the tokens are kept
// in memory. Throws Error for files that cannot be read.
TokenBytes tokenize_file(const std::string& path, const text::Tokenizer& tokenizer,
                         const TokenCache& cache);

}  // namespace perigee::data
