#include "exec/kernels/attention/score_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "exec/kernels/lanes.h"

namespace perigee::exec::kernels {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Reads `count` <= 16 elements times `scale`; the other lanes are -inf.
PERIGEE_INLINE Floats scaled_lanes(const float* x, int64_t count, float scale) {
  const Floats v = load_lanes(x, count, 0) * scale;
  return count == kLanes ? v : kLaneNumbers < static_cast<int32_t>(count) ? v : splat(kLowest);
}

PERIGEE_INLINE float add_lanes(Floats v) {
  float sum = 0;
  for (int l = 0; l < kLanes; ++l) sum += v[l];
  return sum;
}

template <class E>
PERIGEE_INLINE float exponentials_of(const float* x, int64_t n, float& top, E* to, float scale) {
  Floats largest = splat(kLowest);
  each_lanes(n, [&](int64_t i, auto count) PERIGEE_LAMBDA {
    const Floats v = scaled_lanes(x + i, count, scale);
    largest = v > largest ? v : largest;
  });
  float most = kLowest;
  for (int l = 0; l < kLanes; ++l) most = largest[l] > most ? largest[l] : most;
  Floats sum = splat(0);
  each_lanes(n, [&](int64_t i, auto count) PERIGEE_LAMBDA {
    const Floats v = exp_negative(scaled_lanes(x + i, count, scale) - most);
    store_lanes(to + i, v, count);
    sum += v;
  });
  top = most;
  return add_lanes(sum);
}

// The bits of 16 probabilities and gradients of scores, from key `k` on.
struct ScoreWords {
  Words p, d;
};
PERIGEE_INLINE ScoreWords score_words(const ScoreRow& row, int64_t k, float scale) {
  const Floats p = exp_negative(load_lanes(row.scores + k, kLanes, 0) * scale - row.lse);
  const Floats d = p * (load_lanes(row.d + k, kLanes, 0) - row.dot) * scale;
  return {bfloat16_bits(p), bfloat16_bits(d)};
}
PERIGEE_INLINE ScoreWords seen_score_words(const ScoreRow& row, int64_t k, float scale) {
  const auto all = score_words(row, k, scale);
  const Ints seen = kLaneNumbers < static_cast<int32_t>(row.own - k);
  return {seen ? all.p : Words{}, seen ? all.d : Words{}};
}

PERIGEE_INLINE void store_score_words(ScoreWords first, ScoreWords second, int64_t k,
                                      PairedScores to) {
  const Words p = first.p | second.p << 16, d = first.d | second.d << 16;
  const Halves low = __builtin_convertvector(first.d, Halves),
               high = __builtin_convertvector(second.d, Halves);
  __builtin_memcpy(to.p + k, &p, sizeof p);
  __builtin_memcpy(to.d + k, &d, sizeof d);
  __builtin_memcpy(to.d_first + k, &low, sizeof low);
  __builtin_memcpy(to.d_second + k, &high, sizeof high);
}

}  // namespace

PERIGEE_SIMD float exponentials(const float* x, int64_t n, float& top, float* to, float scale) {
  return exponentials_of(x, n, top, to, scale);
}
PERIGEE_SIMD float exponentials(const float* x, int64_t n, float& top, c10::BFloat16* to,
                                float scale) {
  return exponentials_of(x, n, top, to, scale);
}

PERIGEE_SIMD void scale_row(float* x, int64_t n, float factor) {
  each_lanes(n, [&](int64_t i, auto count) PERIGEE_LAMBDA {
    store_lanes(x + i, load_lanes(x + i, count, 0) * factor, count);
  });
}

PERIGEE_SIMD void probabilities(float* p, int64_t n, float lse, float scale) {
  each_lanes(n, [&](int64_t i, auto count) PERIGEE_LAMBDA {
    store_lanes(p + i, exp_negative(load_lanes(p + i, count, 0) * scale - lse), count);
  });
}

PERIGEE_SIMD void score_gradients(float* d, const float* p, int64_t n, float dot, float scale) {
  each_lanes(n, [&](int64_t i, auto count) PERIGEE_LAMBDA {
    const Floats v = load_lanes(p + i, count, 0) * (load_lanes(d + i, count, 0) - dot) * scale;
    store_lanes(d + i, v, count);
  });
}

PERIGEE_SIMD void score_pairs(const ScoreRow& first, const ScoreRow& second, int64_t n, float scale,
                              PairedScores to) {
  const int64_t whole = std::min(first.own, second.own) / kLanes * kLanes;
  const int64_t seen = std::max(first.own, second.own);
  int64_t k = 0;
  for (; k < whole; k += kLanes) {
    store_score_words(score_words(first, k, scale), score_words(second, k, scale), k, to);
  }
  for (; k < seen; k += kLanes) {
    store_score_words(seen_score_words(first, k, scale), seen_score_words(second, k, scale), k, to);
  }
  for (; k < n; k += kLanes) store_score_words({Words{}, Words{}}, {Words{}, Words{}}, k, to);
}

PERIGEE_SIMD float dot_product(const float* a, const float* b, int64_t n) {
  Floats sum = splat(0);
  each_lanes(n, [&](int64_t i, auto count) PERIGEE_LAMBDA {
    sum += load_lanes(a + i, count, 0) * load_lanes(b + i, count, 0);
  });
  return add_lanes(sum);
}

double exponentials(const double* x, int64_t n, double& top, double* to) {
  top = n > 0 ? *std::max_element(x, x + n) : -std::numeric_limits<double>::infinity();
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    to[i] = std::exp(x[i] - top);
    sum += to[i];
  }
  return sum;
}

void scale_row(double* x, int64_t n, double factor) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

void probabilities(double* p, int64_t n, double lse) {
  for (int64_t i = 0; i < n; ++i) p[i] = std::exp(p[i] - lse);
}

void score_gradients(double* d, const double* p, int64_t n, double dot, double scale) {
  for (int64_t i = 0; i < n; ++i) d[i] = p[i] * (d[i] - dot) * scale;
}

double dot_product(const double* a, const double* b, int64_t n) {
  return std::inner_product(a, a + n, b, 0.0);
}

PERIGEE_SIMD float dot_product(const c10::BFloat16* a, const c10::BFloat16* b, int64_t n) {
  Floats sum = splat(0);
  each_lanes(n, [&](int64_t i, auto count) PERIGEE_LAMBDA {
    sum += load_lanes(a + i, count, 0) * load_lanes(b + i, count, 0);
  });
  return add_lanes(sum);
}

PERIGEE_SIMD void round_row(const float* from, int64_t n, float factor, c10::BFloat16* to) {
  each_lanes(n, [&](int64_t i, auto count) PERIGEE_LAMBDA {
    store_lanes(to + i, load_lanes(from + i, count, 0) * factor, count);
  });
}

}  // namespace perigee::exec::kernels
