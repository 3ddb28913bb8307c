// Text files tokenized once per host: the token file goes to the cache folder, where all
// ranks map it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/files/mapped_file.h"
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

using WriteBytes = std::function<void(std::string_view)>;

// Returns the bytes that `make` writes: those of the cached file of that name, or in memory where
// the folder cannot be written. Where the file does not exist, the first process writes it under a
// temporary name, and the others wait. Throws the Error of `make` where its input is invalid.
MappedFile cached(const TokenCache& cache, const std::string& name,
                  const std::function<void(const WriteBytes&)>& make);

// Returns a name that follows from a text, and a hash of a file's content, which is read in pieces.
std::string hash_of_text(std::string_view text);
std::string hash_of_file(const std::string& path);

// Appends ids as little-endian integers of `width` bytes.
void append_ids(std::span<const int64_t> ids, int width, std::string& bytes);

// Returns the tokens of a text file, also a compressed one, by the tokenizer of a file. They are
// cached under a name that follows from both files' content, as .u16 or (from 65,537 ids on) .u32.
// Throws Error for files that cannot be read.
TokenBytes tokenize_file(const std::string& path, const text::Tokenizer& tokenizer,
                         const TokenCache& cache);

}  // namespace perigee::data
