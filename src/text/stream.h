// Long texts to ids, in chunks on all cores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "text/tokenizer.h"

namespace perigee::text {

struct Stream {
  // Reads at most so many bytes and returns their number; 0: the text ends.
  std::function<size_t(char*, size_t)> read;
  // Takes the next ids.
  std::function<void(std::span<const int64_t>)> take;
  // Is told how many bytes are done.
  std::function<void(uint64_t)> progress = [](uint64_t) {};
  size_t chunk = 1 << 20;  // bytes
};

// Encodes a text. The ids are those of the whole text: it is cut only where the tokenizer allows it
// (Tokenizer::last_cut). Memory: a few chunks for each core, where cuts are no further apart than a
// chunk, else the text between them. Throws the first Error of the functions and the tokenizer.
void encode_stream(const Tokenizer& tokenizer, const Stream& stream);

// Returns "tokenizing FILE: 12.3 MiB of 1.5 GiB"; `all` 0: it is not known.
std::string progress_line(const std::string& file, uint64_t done, uint64_t all);

// Returns a function that reads a text in memory, which must remain.
std::function<size_t(char*, size_t)> reader_of(std::string_view text);

}  // namespace perigee::text
