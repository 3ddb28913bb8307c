#include "exec/kernels/attention/score_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "exec/kernels/lanes.h"

namespace perigee::exec::kernels {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

PERIGEE_INLINE int64_t lanes_left(int64_t i, int64_t n) {
  return n - i < kLanes ? n - i : int64_t{kLanes};
}

// Reads `count` <= 16 elements times `scale`; the other lanes are -inf.
PERIGEE_INLINE Floats scaled_lanes(const float* x, int64_t count, float scale) {
  const Floats v = load_lanes(x, count, 0) * scale;
  if (count == kLanes) return v;
  const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lane < static_cast<int32_t>(count) ? v : splat(kLowest);
}

PERIGEE_INLINE float add_lanes(Floats v) {
  float sum = 0;
  for (int l = 0; l < kLanes; ++l) sum += v[l];
  return sum;
}

}  // namespace

PERIGEE_SIMD float exponentials(float* x, int64_t n, float& top, float scale) {
  Floats largest = splat(kLowest);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Floats v = scaled_lanes(x + i, lanes_left(i, n), scale);
    largest = v > largest ? v : largest;
  }
  top = kLowest;
  for (int l = 0; l < kLanes; ++l) top = largest[l] > top ? largest[l] : top;
  Floats sum = splat(0);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = lanes_left(i, n);
    const Floats v = exp_negative(scaled_lanes(x + i, count, scale) - top);
    store_lanes(x + i, v, count);
    sum += v;
  }
  return add_lanes(sum);
}

PERIGEE_SIMD void scale_row(float* x, int64_t n, float factor) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = lanes_left(i, n);
    store_lanes(x + i, load_lanes(x + i, count, 0) * factor, count);
  }
}

PERIGEE_SIMD void probabilities(float* p, int64_t n, float lse, float scale) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = lanes_left(i, n);
    store_lanes(p + i, exp_negative(load_lanes(p + i, count, 0) * scale - lse), count);
  }
}

PERIGEE_SIMD void score_gradients(float* d, const float* p, int64_t n, float dot, float scale) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = lanes_left(i, n);
    const Floats v = load_lanes(p + i, count, 0) * (load_lanes(d + i, count, 0) - dot) * scale;
    store_lanes(d + i, v, count);
  }
}

PERIGEE_SIMD float dot_product(const float* a, const float* b, int64_t n) {
  Floats sum = splat(0);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = lanes_left(i, n);
    sum += load_lanes(a + i, count, 0) * load_lanes(b + i, count, 0);
  }
  return add_lanes(sum);
}

double exponentials(double* x, int64_t n, double& top) {
  top = n > 0 ? *std::max_element(x, x + n) : -std::numeric_limits<double>::infinity();
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    x[i] = std::exp(x[i] - top);
    sum += x[i];
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
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = lanes_left(i, n);
    sum += load_lanes(a + i, count, 0) * load_lanes(b + i, count, 0);
  }
  return add_lanes(sum);
}

PERIGEE_SIMD void round_row(const float* from, int64_t n, float factor, c10::BFloat16* to) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = lanes_left(i, n);
    store_lanes(to + i, load_lanes(from + i, count, 0) * factor, count);
  }
}

}  // namespace perigee::exec::kernels
