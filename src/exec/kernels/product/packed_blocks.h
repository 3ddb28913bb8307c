// Factors of a product as they are packed into blocks.
#pragma once

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstring>

#include "exec/kernels/lanes.h"
#include "exec/kernels/transpose.h"

namespace perigee::exec::kernels {

PERIGEE_SIMD inline void transpose_words(const char* from, int64_t from_step, int64_t rows,
                                         int64_t columns, char* to, int64_t to_step) {
  transpose<4>(from, from_step, rows, columns, to, to_step);
}
PERIGEE_SIMD inline void transpose_widened(const c10::BFloat16* from, int64_t from_step,
                                           int64_t rows, int64_t columns, float* to,
                                           int64_t to_step) {
  transpose<2>(reinterpret_cast<const char*>(from), from_step, rows, columns,
               reinterpret_cast<char*>(to), to_step);
}

constexpr int64_t kAhead = 16;  // rows before its use that a row is fetched

// Starts to fetch a piece of a row, which need not exist, into the second-level cache: pieces of rows
// that are far apart are not foreseen by the CPU. GCC drops calls of functions that do nothing else,
// unless they are inlined.
PERIGEE_INLINE void prefetch_piece(const void* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(static_cast<const char*>(row) + i, 0, 2);
  }
}

// to [2 n]: the numbers of two rows [n] alternate.
PERIGEE_SIMD inline void alternate_rows(const uint16_t* first, const uint16_t* second, int64_t n,
                                        uint16_t* to) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    Halves a, b;
    std::memcpy(&a, first + i, sizeof a);
    std::memcpy(&b, second + i, sizeof b);
    const auto pairs = __builtin_convertvector(a, Words) | __builtin_convertvector(b, Words) << 16;
    std::memcpy(to + 2 * i, &pairs, sizeof pairs);
  }
  for (; i < n; ++i) {
    to[2 * i] = first[i];
    to[2 * i + 1] = second[i];
  }
}

PERIGEE_SIMD inline void widen_row(const c10::BFloat16* from, int64_t n, float* to) {
  each_lanes(n, [&](int64_t i, auto count)
                    PERIGEE_LAMBDA { store_lanes(to + i, load_lanes(from + i, count, 0), count); });
}

// A factor by its lines: rows of the left one, columns of the right one.
template <class T>
struct ProductFactor {
  const T* data;
  int64_t lines, depth;
  int64_t line_step, depth_step;  // elements; one of them is 1

  const T* at(int64_t line, int64_t d) const { return data + line * line_step + d * depth_step; }
};

// Packed depth is counted in words: of a float, or of two bfloat16 whose second one may be missing.
template <class P>
constexpr int64_t kPerWord = 4 / sizeof(P);

// Returns the words of `depth` elements.
template <class P>
constexpr int64_t packed_words(int64_t depth) {
  return (depth + kPerWord<P> - 1) / kPerWord<P>;
}

// Where lines are packed: blocks of `side` lines, `step` elements from one to the next.
template <class P>
struct PackedBlocks {
  P* data;
  int64_t side, step;
};

// Calls f(first line, lines, its data) for each block of `count` lines.
template <class P, class F>
PERIGEE_INLINE void each_block(const PackedBlocks<P>& to, int64_t count, const F& f) {
  for (int64_t i = 0; i < count; i += to.side) {
    f(i, std::min(to.side, count - i), to.data + i / to.side * to.step);
  }
}

// Packs `count` lines and `depth` elements of each. A block is [words, side]: a word of each line, then
// the next word of each.
template <class T>
inline void pack_by_depth(const ProductFactor<T>& from, int64_t line, int64_t count, int64_t begin,
                          int64_t depth, const PackedBlocks<T>& to) {
  constexpr int64_t kWord = kPerWord<T>;
  const int64_t whole = depth / kWord;
  if (from.depth_step == 1) {
    each_block(to, count, [&](int64_t first, int64_t lines, T* block) {
      if (from.line_step % kWord == 0) {
        transpose_words(reinterpret_cast<const char*>(from.at(line + first, begin)),
                        from.line_step / kWord, lines, whole, reinterpret_cast<char*>(block),
                        to.side);
        return;
      }
      for (int64_t i = 0; i < lines; ++i) {
        const T* row = from.at(line + first + i, begin);
        for (int64_t d = 0; d < whole; ++d) {
          std::copy_n(row + d * kWord, kWord, block + (d * to.side + i) * kWord);
        }
      }
    });
  } else {
    for (int64_t d = 0; d < whole; ++d) {
      const T *row = from.at(line, begin + d * kWord), *next = row + from.depth_step;
      each_block(to, count, [&](int64_t first, int64_t lines, T* block) {
        if constexpr (kWord == 1) {
          std::copy_n(row + first, lines, block + d * to.side);
        } else {
          prefetch_piece(row + kAhead * from.depth_step + first, 256);
          prefetch_piece(next + kAhead * from.depth_step + first, 256);
          alternate_rows(reinterpret_cast<const uint16_t*>(row + first),
                         reinterpret_cast<const uint16_t*>(next + first), lines,
                         reinterpret_cast<uint16_t*>(block) + d * to.side * kWord);
        }
      });
    }
  }
  if constexpr (kWord == 2) {
    if (depth % kWord == 0) return;
    each_block(to, count, [&](int64_t first, int64_t lines, T* block) {
      for (int64_t i = 0; i < lines; ++i) {
        T* word = block + (whole * to.side + i) * kWord;
        word[0] = *from.at(line + first + i, begin + depth - 1);
        word[1] = T(0);
      }
    });
  }
}

constexpr int64_t kSpareDepth = 64;

// Packs them as rows of `row` elements, which are words. `spare` has kSpareDepth elements of each line.
template <class T>
inline void pack_by_line(const ProductFactor<T>& from, int64_t line, int64_t count, int64_t begin,
                         int64_t depth, T* spare, const PackedBlocks<T>& to, int64_t row) {
  if (from.depth_step == 1) {
    each_block(to, count, [&](int64_t first, int64_t lines, T* block) {
      for (int64_t i = 0; i < lines; ++i) {
        std::copy_n(from.at(line + first + i, begin), depth, block + i * row);
        block[i * row + depth] = T(0);
      }
    });
  } else if constexpr (kPerWord<T> == 1) {
    each_block(to, count, [&](int64_t first, int64_t lines, T* block) {
      transpose_words(reinterpret_cast<const char*>(from.at(line + first, begin)), from.depth_step,
                      depth, lines, reinterpret_cast<char*>(block), row);
    });
  } else {
    for (int64_t d = 0; d < depth; d += kSpareDepth) {
      const int64_t part = std::min(kSpareDepth, depth - d);
      pack_by_depth(from, line, count, begin + d, part, PackedBlocks<T>{spare, count, 0});
      each_block(to, count, [&](int64_t first, int64_t lines, T* block) {
        transpose_words(reinterpret_cast<const char*>(spare + first * kPerWord<T>), count,
                        packed_words<T>(part), lines, reinterpret_cast<char*>(block + d),
                        row / kPerWord<T>);
      });
    }
  }
}

// As above, widened.
inline void pack_by_depth(const ProductFactor<c10::BFloat16>& from, int64_t line, int64_t count,
                          int64_t begin, int64_t depth, const PackedBlocks<float>& to) {
  if (from.depth_step == 1) {
    return each_block(to, count, [&](int64_t first, int64_t lines, float* block) {
      transpose_widened(from.at(line + first, begin), from.line_step, lines, depth, block, to.side);
    });
  }
  for (int64_t d = 0; d < depth; ++d) {
    each_block(to, count, [&](int64_t first, int64_t lines, float* block) {
      const auto* row = from.at(line + first, begin + d);
      prefetch_piece(row + kAhead * from.depth_step, 128);
      widen_row(row, lines, block + d * to.side);
    });
  }
}

inline void pack_by_line(const ProductFactor<c10::BFloat16>& from, int64_t line, int64_t count,
                         int64_t begin, int64_t depth, float* /*spare*/,
                         const PackedBlocks<float>& to, int64_t row) {
  each_block(to, count, [&](int64_t first, int64_t lines, float* block) {
    if (from.depth_step != 1) {
      transpose_widened(from.at(line + first, begin), from.depth_step, depth, lines, block, row);
      return;
    }
    for (int64_t i = 0; i < lines; ++i) {
      widen_row(from.at(line + first + i, begin), depth, block + i * row);
    }
  });
}

}  // namespace perigee::exec::kernels
