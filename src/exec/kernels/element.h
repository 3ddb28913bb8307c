// Elements in vector loops. bfloat16 is read and written as bits, so that compilers vectorise it,
// and computed in float32. Sums use a fixed number of lanes, so that they vectorise and are
// bit-equal from run to run.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

#include "exec/ops/simd.h"

namespace perigee::exec {

template <class T>
struct WideOf {
  using type = T;
};
template <>
struct WideOf<c10::BFloat16> {
  using type = float;
};
template <>
struct WideOf<c10::Half> {
  using type = float;
};
// The type that elements are computed in.
template <class T>
using Wide = typename WideOf<T>::type;

PERIGEE_INLINE float load(const float* p, int64_t i) { return p[i]; }
PERIGEE_INLINE double load(const double* p, int64_t i) { return p[i]; }
PERIGEE_INLINE float load(const c10::BFloat16* p, int64_t i) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(p[i].x) << 16);
}
PERIGEE_INLINE float load(const c10::Half* p, int64_t i) {
  return static_cast<float>(__builtin_bit_cast(_Float16, p[i].x));
}

PERIGEE_INLINE void store(float* p, int64_t i, float v) { p[i] = v; }
PERIGEE_INLINE void store(double* p, int64_t i, double v) { p[i] = v; }
PERIGEE_INLINE void store(c10::BFloat16* p, int64_t i, float v) {
  const auto bits = __builtin_bit_cast(uint32_t, v);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  p[i].x = static_cast<uint16_t>(v != v ? 0x7FC0 : rounded);
}
PERIGEE_INLINE void store(c10::Half* p, int64_t i, float v) {
  p[i].x = __builtin_bit_cast(uint16_t, static_cast<_Float16>(v));
}

// Returns the number of a float64 tensor with one element.
inline double scalar(const at::Tensor& t) { return *t.const_data_ptr<double>(); }

// std::sqrt is not inlined into PERIGEE_SIMD functions; this is.
PERIGEE_INLINE float root(float x) { return __builtin_sqrtf(x); }
PERIGEE_INLINE double root(double x) { return __builtin_sqrt(x); }

// Starts to load the kPiece elements that begin `kBytes` after stream[i] into the cache. A CPU by
// itself loads a long stream too late. The elements may lie past the end of the stream.
constexpr int64_t kPiece = 64;
template <int64_t kBytes, class T>
PERIGEE_INLINE void fetch_ahead(const T* stream, int64_t i) {
  const auto first = reinterpret_cast<uintptr_t>(stream + i) + kBytes;
  for (uintptr_t line = 0; line < kPiece * sizeof(T); line += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(first + line));
  }
}

// Calls f(i) for i in [0, n), and before(i) where a whole piece begins.
template <class Before, class F>
PERIGEE_INLINE void each_in_pieces(int64_t n, Before before, F f) {
  const int64_t pieces = n / kPiece * kPiece;
  for (int64_t piece = 0; piece < pieces; piece += kPiece) {
    before(piece);
    for (int64_t i = piece; i < piece + kPiece; ++i) f(i);
  }
  for (int64_t i = pieces; i < n; ++i) f(i);
}

constexpr int kSumLanes = 16;
// Adds f(i) for i in [begin, end) to the lanes.
template <class W, class F>
PERIGEE_INLINE void add_to_lanes(W* lanes, int64_t begin, int64_t end, F f) {
  for (int64_t i = begin; i < end; i += kSumLanes) {
    for (int l = 0; l < kSumLanes; ++l) lanes[l] += f(i + l);
  }
}

// Adds f(i) for i in [begin, n), and returns the sum of all lanes.
template <class W, class F>
PERIGEE_INLINE W finish_lanes(W* lanes, int64_t begin, int64_t n, F f) {
  const int64_t whole = n / kSumLanes * kSumLanes;
  add_to_lanes(lanes, begin, whole, f);
  W sum = 0;
  for (int64_t i = whole; i < n; ++i) sum += f(i);
  for (int l = 0; l < kSumLanes; ++l) sum += lanes[l];
  return sum;
}

// Returns the sum of f(i) for i in [0, n), in type W. Calls before(i) where a whole piece begins.
template <class W, class Before, class F>
PERIGEE_INLINE W lane_sum_in_pieces(int64_t n, Before before, F f) {
  const int64_t pieces = n / kPiece * kPiece;
  W lanes[kSumLanes] = {};
  for (int64_t piece = 0; piece < pieces; piece += kPiece) {
    before(piece);
    add_to_lanes(lanes, piece, piece + kPiece, f);
  }
  return finish_lanes(lanes, pieces, n, f);
}
template <class W, class F>
PERIGEE_INLINE W lane_sum(int64_t n, F f) {
  W lanes[kSumLanes] = {};
  return finish_lanes(lanes, 0, n, f);
}

// Returns whether vector loops support the type.
inline bool has_element(c10::ScalarType type) {
  return type == c10::ScalarType::Float || type == c10::ScalarType::Double ||
         type == c10::ScalarType::BFloat16;
}

// Calls f<T>() for float32, float64 and bfloat16. Returns false for other types.
template <class F>
bool dispatch_element(c10::ScalarType type, F f) {
  switch (type) {
    case c10::ScalarType::Float:
      f.template operator()<float>();
      return true;
    case c10::ScalarType::Double:
      f.template operator()<double>();
      return true;
    case c10::ScalarType::BFloat16:
      f.template operator()<c10::BFloat16>();
      return true;
    default:
      return false;
  }
}

// As above, and for float16, which some gradients have; it is only read.
template <class F>
bool dispatch_gradient(c10::ScalarType type, F f) {
  if (type != c10::ScalarType::Half) return dispatch_element(type, f);
  f.template operator()<c10::Half>();
  return true;
}

}  // namespace perigee::exec
