#include "exec/kernels/attention/factor_rows.h"

#include <algorithm>

#include "exec/kernels/lanes.h"

namespace perigee::exec::kernels {
namespace {

using c10::BFloat16;

PERIGEE_INLINE Words load_words(const void* from, int64_t count) {
  Words words{};
  if (count == kLanes) {
    __builtin_memcpy(&words, from, sizeof words);
  } else {
    __builtin_memcpy(&words, from, static_cast<size_t>(count) * sizeof(uint32_t));
  }
  return words;
}

PERIGEE_INLINE void store_words(void* to, Words words) {
  __builtin_memcpy(to, &words, sizeof words);
}

PERIGEE_INLINE Words words_of(const BFloat16* from) {
  Halves halves;
  __builtin_memcpy(&halves, from, sizeof halves);
  return __builtin_convertvector(halves, Words);
}

PERIGEE_INLINE Words words_of(const float* from) {
  return bfloat16_bits(load_lanes(from, kLanes, 0));
}

// Transposes a tile of 16 rows: exchanges its two blocks off the diagonal, then those of the blocks.
PERIGEE_INLINE void transpose_tile(Words (&rows)[kLanes]) {
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) {
    const Ints right = (kLaneNumbers & half) != 0;
    const Ints upper = (right & (kLaneNumbers - half + kLanes)) | (~right & kLaneNumbers);
    const Ints lower = (right & (kLaneNumbers + kLanes)) | (~right & (kLaneNumbers + half));
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if ((i & half) != 0) continue;
      const Words a = rows[i], b = rows[i + half];
      rows[i] = __builtin_shuffle(a, b, upper);
      rows[i + half] = __builtin_shuffle(a, b, lower);
    }
  }
}

#define PERIGEE_PAIR_ROWS(T)                                                  \
  PERIGEE_SIMD void pair_rows(MatrixRows<const T> from, MatrixSize size,      \
                              MatrixRows<uint32_t> to) {                      \
    for (int64_t r = 0; r < size.rows; r += 2) {                              \
      const T *low = from.row(r), *high = from.row(r + 1);                    \
      auto* pairs = to.row(r / 2);                                            \
      for (int64_t c = 0; c < size.columns; c += kLanes) {                    \
        store_words(pairs + c, words_of(low + c) | words_of(high + c) << 16); \
      }                                                                       \
    }                                                                         \
  }

}  // namespace

PERIGEE_PAIR_ROWS(BFloat16)
PERIGEE_PAIR_ROWS(float)
#undef PERIGEE_PAIR_ROWS

PERIGEE_SIMD void pair_columns(MatrixRows<const BFloat16> from, MatrixSize size,
                               MatrixRows<uint32_t> to) {
  const int64_t pairs = size.columns / 2;
  for (int64_t r = 0; r < size.rows; r += kLanes) {
    for (int64_t p = 0; p < pairs; p += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, pairs - p);
      Words tile[kLanes];
      for (int i = 0; i < kLanes; ++i) tile[i] = load_words(from.row(r + i) + 2 * p, count);
      transpose_tile(tile);
      for (int64_t i = 0; i < count; ++i) store_words(to.row(p + i) + r, tile[i]);
    }
  }
}

PERIGEE_SIMD void transpose(MatrixRows<const BFloat16> from, MatrixSize size,
                            MatrixRows<BFloat16> to) {
  for (int64_t r = 0; r < size.rows; r += 2 * kLanes) {
    for (int64_t c = 0; c < size.columns; c += kLanes) {
      Words tile[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const int64_t row = r + 2 * i;
        tile[i] = words_of(from.row(row) + c) | words_of(from.row(row + 1) + c) << 16;
      }
      transpose_tile(tile);
      for (int i = 0; i < kLanes; ++i) store_words(to.row(c + i) + r, tile[i]);
    }
  }
}

#define PERIGEE_TRANSPOSE(T)                                                                     \
  PERIGEE_SIMD void transpose(MatrixRows<const float> from, MatrixSize size, MatrixRows<T> to) { \
    for (int64_t r = 0; r < size.rows; r += kLanes) {                                            \
      for (int64_t c = 0; c < size.columns; c += kLanes) {                                       \
        Words tile[kLanes];                                                                      \
        for (int i = 0; i < kLanes; ++i) tile[i] = load_words(from.row(r + i) + c, kLanes);      \
        transpose_tile(tile);                                                                    \
        for (int i = 0; i < kLanes; ++i) {                                                       \
          store_lanes(to.row(c + i) + r, reinterpret_cast<Floats>(tile[i]), kLanes);             \
        }                                                                                        \
      }                                                                                          \
    }                                                                                            \
  }
PERIGEE_TRANSPOSE(float)
PERIGEE_TRANSPOSE(BFloat16)
#undef PERIGEE_TRANSPOSE

}  // namespace perigee::exec::kernels
