// The value of an element of a random tensor, for device code, and for host code that tests compare
// with exec/ops/random.h.
#pragma once

#include <cstdint>

#include "exec/ops/philox.h"

namespace perigee::cuda {

inline constexpr int kMostRandomDims = 8;

// The drawn numbers: exec::RandomStream and exec::RandomBlock as plain data.
struct RandomPlace {
  uint64_t seed = 0;
  uint32_t key = 0;
  uint32_t step = 0;
  const uint32_t* step_in_memory = nullptr;  // of the GPU, in place of `step`
  int64_t numel = 0;
  int64_t run = 1;  // consecutive elements with consecutive indices
  uint64_t offset = 0;
  int32_t dims = 0;  // outside a run, row-major
  int64_t sizes[kMostRandomDims] = {};
  uint64_t strides[kMostRandomDims] = {};

  // Returns the index in the whole step's tensor of a local element.
  PERIGEE_BOTH uint64_t index(int64_t local) const {
    int64_t outer = local / run;
    uint64_t at = offset + static_cast<uint64_t>(local - outer * run);
    for (int d = dims - 1; d >= 0; --d) {
      const int64_t next = outer / sizes[d];
      at += static_cast<uint64_t>(outer - next * sizes[d]) * strides[d];
      outer = next;
    }
    return at;
  }

  PERIGEE_BOTH exec::PhiloxWords block(uint64_t index) const {
    return exec::philox_block(seed, key, step_in_memory ? *step_in_memory : step, index / 4);
  }
};

// Calls f(local element, words, position in its block) for elements [begin, end). Consecutive
// elements of one Philox block share its computation.
template <class F>
PERIGEE_BOTH void each_random(const RandomPlace& place, int64_t begin, int64_t end, F f) {
  uint64_t current = ~uint64_t{0};
  exec::PhiloxWords words{};
  for (int64_t local = begin; local < end; ++local) {
    const uint64_t index = place.index(local);
    if (index / 4 != current) {
      current = index / 4;
      words = place.block(index);
    }
    f(local, words, static_cast<int>(index % 4));
  }
}

// exec::Distribution with derived constants.
struct Drawing {
  enum Kind : int32_t { uniform, normal, bernoulli, integer, exponential };
  Kind kind = uniform;
  double a = 0, b = 0;     // a + b * x
  int bits = 24;           // uniform, exponential
  uint64_t threshold = 0;  // bernoulli: words below it give 1
  int64_t low = 0;         // integer
  uint64_t range = 1;
};

// Returns the number drawn for an element; not for Drawing::integer.
PERIGEE_BOTH double draw(const Drawing& d, const exec::PhiloxWords& words, int lane) {
  const uint32_t word = words.w[lane];
  switch (d.kind) {
    case Drawing::uniform:
      return exec::add_product(d.a, d.b, exec::uniform_of(word, d.bits));
    case Drawing::normal:
      return exec::add_product(d.a, d.b, exec::normal_of(words, lane));
    case Drawing::bernoulli:
      return word < d.threshold ? 1.0 : 0.0;
    default:
      return exec::exponential_of(word, d.bits);
  }
}

// Returns whether dropout keeps the element.
PERIGEE_BOTH bool keeps(uint64_t threshold, const exec::PhiloxWords& words, int lane) {
  return words.w[lane] >= threshold;
}

}  // namespace perigee::cuda
