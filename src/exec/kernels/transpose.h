// Transposed matrices of words of 32 bits, within the vector extension of lanes.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "exec/kernels/lanes.h"

namespace perigee::exec::kernels {

// Eight words of 32 bits, and the halves of the list that alternates between two of them.
using Octet = uint32_t __attribute__((vector_size(32)));
PERIGEE_INLINE Octet low(Octet a, Octet b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
PERIGEE_INLINE Octet high(Octet a, Octet b) {
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}

// Reads words, or bfloat16 as float32. Addresses need not be aligned.
template <int kBytes>
PERIGEE_INLINE Octet read_octet(const char* from) {
  if constexpr (kBytes == 4) {
    Octet words;
    std::memcpy(&words, from, sizeof words);
    return words;
  } else {
    uint16_t halves __attribute__((vector_size(16)));
    std::memcpy(&halves, from, sizeof halves);
    return __builtin_convertvector(halves, Octet) << 16;
  }
}
template <int kBytes>
PERIGEE_INLINE uint32_t read_word(const char* from) {
  std::conditional_t<kBytes == 4, uint32_t, uint16_t> word;
  std::memcpy(&word, from, sizeof word);
  return uint32_t{word} << (32 - 8 * kBytes);
}

// to [columns, rows], words = from [rows, columns] of kBytes each, transposed; rows are `from_step`
// elements and `to_step` words apart.
template <int kBytes>
PERIGEE_INLINE void transpose(const char* from, int64_t from_step, int64_t rows, int64_t columns,
                              char* to, int64_t to_step) {
  constexpr int64_t kWord = 4, kChunk = 64;
  const int64_t even_rows = rows / 8 * 8, even_columns = columns / 8 * 8;
  // The result of a chunk of columns stays in the first-level cache.
  for (int64_t chunk = 0; chunk < even_columns; chunk += kChunk) {
    for (int64_t r = 0; r < even_rows; r += 8) {
      for (int64_t c = chunk; c < std::min(chunk + kChunk, even_columns); c += 8) {
        Octet lines[8], next[8];
        for (int i = 0; i < 8; ++i) {
          lines[i] = read_octet<kBytes>(from + ((r + i) * from_step + c) * kBytes);
        }
        for (int pass = 0; pass < 3; ++pass) {
          for (int i = 0; i < 4; ++i) {
            next[2 * i] = low(lines[i], lines[i + 4]);
            next[2 * i + 1] = high(lines[i], lines[i + 4]);
          }
          for (int i = 0; i < 8; ++i) lines[i] = next[i];
        }
        for (int i = 0; i < 8; ++i) {
          std::memcpy(to + ((c + i) * to_step + r) * kWord, &lines[i], sizeof(Octet));
        }
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = r < even_rows ? even_columns : 0; c < columns; ++c) {
      const auto word = read_word<kBytes>(from + (r * from_step + c) * kBytes);
      std::memcpy(to + (c * to_step + r) * kWord, &word, kWord);
    }
  }
}

}  // namespace perigee::exec::kernels
