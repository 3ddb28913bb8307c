// Sixteen floats at a time, in the vector extension that GCC and Clang share; an operation compiles
// to the instruction set of the enclosing PERIGEE_SIMD function.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>
#include <type_traits>

#include "exec/ops/simd.h"

// Vectors are passed between inlined functions only.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace perigee::exec {

constexpr int kLanes = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
constexpr Ints kLaneNumbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

PERIGEE_INLINE Floats splat(float x) { return Floats{} + x; }

// Calls f(i, count) for i = 0, 16, ... below n; only the last count may be less than 16. The others
// are constants: where the compiler knows the count, vectors stay in registers.
template <class F>
PERIGEE_INLINE void each_lanes(int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, std::integral_constant<int64_t, kLanes>());
  if (i < n) f(i, n - i);
}

// Reads `count` <= 16 elements; the other lanes are `fill`.
PERIGEE_INLINE Floats load_lanes(const float* p, int64_t count, float fill) {
  Floats v = splat(fill);
  if (count == kLanes) {
    __builtin_memcpy(&v, p, sizeof v);
  } else {
    __builtin_memcpy(&v, p, static_cast<size_t>(count) * sizeof(float));
  }
  return v;
}
PERIGEE_INLINE Floats load_lanes(const c10::BFloat16* p, int64_t count, float fill) {
  Halves h{};
  if (count == kLanes) {
    __builtin_memcpy(&h, p, sizeof h);
  } else {
    __builtin_memcpy(&h, p, static_cast<size_t>(count) * sizeof(uint16_t));
  }
  const Floats v = reinterpret_cast<Floats>(__builtin_convertvector(h, Words) << 16);
  if (count == kLanes) return v;
  return kLaneNumbers < static_cast<int32_t>(count) ? v : splat(fill);
}

PERIGEE_INLINE void store_lanes(float* p, Floats v, int64_t count) {
  if (count == kLanes) {
    __builtin_memcpy(p, &v, sizeof v);
  } else {
    __builtin_memcpy(p, &v, static_cast<size_t>(count) * sizeof(float));
  }
}
// Returns the bits of bfloat16, rounded to nearest even; NaN stays NaN.
PERIGEE_INLINE Words bfloat16_bits(Floats v) {
  const Words bits = reinterpret_cast<Words>(v);
  const Words rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return v == v ? rounded : Words{} + 0x7FC0;
}
PERIGEE_INLINE void store_lanes(c10::BFloat16* p, Floats v, int64_t count) {
  const Halves h = __builtin_convertvector(bfloat16_bits(v), Halves);
  if (count == kLanes) {
    __builtin_memcpy(p, &h, sizeof h);
  } else {
    __builtin_memcpy(p, &h, static_cast<size_t>(count) * sizeof(uint16_t));
  }
}

// e^x for x <= 0, within 1 ulp: 2^n times a polynomial on [-ln2/2, ln2/2]
// with Cephes' coefficients.
PERIGEE_INLINE Floats exp_negative(Floats x) {
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the lowest bits.
  const Floats shifted = x * 1.44269504089f + 12582912.0f, n = shifted - 12582912.0f;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const Floats power = reinterpret_cast<Floats>((reinterpret_cast<Words>(shifted) << 23) +
                                                0x3F800000);
  return x < -87.0f ? splat(0) : p * power;
}

}  // namespace perigee::exec
