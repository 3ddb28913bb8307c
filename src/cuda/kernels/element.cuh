// Elements in kernels: converted to the compute type when loaded, and back when stored.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "cuda/kernels/kernels.h"
#include "cuda/kernels/launch.cuh"

namespace perigee::cuda {

template <class T>
struct WideOf {
  using type = float;
};
template <>
struct WideOf<double> {
  using type = double;
};
template <class T>
using Wide = typename WideOf<T>::type;

__device__ inline float load(const float* p, int64_t i) { return p[i]; }
__device__ inline double load(const double* p, int64_t i) { return p[i]; }
__device__ inline float load(const __nv_bfloat16* p, int64_t i) { return __bfloat162float(p[i]); }
__device__ inline float load(const __half* p, int64_t i) { return __half2float(p[i]); }

__device__ inline void store(float* p, int64_t i, float v) { p[i] = v; }
__device__ inline void store(double* p, int64_t i, double v) { p[i] = v; }
__device__ inline void store(__nv_bfloat16* p, int64_t i, float v) {
  p[i] = __float2bfloat16_rn(v);
}
__device__ inline void store(__half* p, int64_t i, float v) { p[i] = __float2half_rn(v); }

// The elements of one access of 16 bytes.
template <class T>
struct Pack {
  static constexpr int kElements = 16 / sizeof(T);
  T values[kElements];
};

// Returns the number of elements before the first multiple of 16 bytes.
template <class T>
__host__ __device__ int64_t elements_to_pack(const T* p) {
  return static_cast<int64_t>(-reinterpret_cast<uintptr_t>(p) % 16 / sizeof(T));
}

template <class T>
__device__ Pack<T> load_pack(const T* p) {
  const int4 bytes = *reinterpret_cast<const int4*>(p);
  Pack<T> pack;
  memcpy(&pack, &bytes, sizeof(pack));
  return pack;
}

template <class T>
__device__ void store_pack(T* p, const Pack<T>& pack) {
  int4 bytes;
  memcpy(&bytes, &pack, sizeof(pack));
  __stwb(reinterpret_cast<int4*>(p), bytes);  // the compiler may split a plain store
}

// Calls f(first, values) for all elements of a row [n], which the threads of a block share: values
// is Wide<T>[k] of elements first, first + 1, ..., where k is Pack<T>::kElements or 1. head: number
// of elements before the first pack, which is at a multiple of 16 bytes.
template <class T, class F>
__device__ void for_row(const T* x, int64_t n, int64_t head, F f) {
  constexpr int kEach = Pack<T>::kElements;
  if (head > n) head = n;
  const auto one = [&](int64_t i) {
    Wide<T> value[1] = {load(x, i)};
    f(i, value);
  };
  for (int64_t i = threadIdx.x; i < head; i += blockDim.x) one(i);
  const int64_t packed = head + (n - head) / kEach * kEach;
  for (int64_t i = head + threadIdx.x * kEach; i < packed; i += blockDim.x * kEach) {
    const auto pack = load_pack(x + i);
    Wide<T> values[kEach];
    for (int j = 0; j < kEach; ++j) values[j] = load(pack.values, j);
    f(i, values);
  }
  for (int64_t i = packed + threadIdx.x; i < n; i += blockDim.x) one(i);
}

// Stores the values as elements i, i + 1, ... of p: one, or a pack at a multiple of 16 bytes.
template <class T, int n>
__device__ void store_values(T* p, int64_t i, const Wide<T> (&values)[n]) {
  if constexpr (n == 1) {
    store(p, i, values[0]);
  } else {
    static_assert(n == Pack<T>::kElements);
    Pack<T> pack;
    for (int j = 0; j < n; ++j) store(pack.values, j, values[j]);
    store_pack(p + i, pack);
  }
}

// Reads the elements that store_values writes.
template <class T, int n>
__device__ void load_values(const T* p, int64_t i, Wide<T> (&values)[n]) {
  if constexpr (n == 1) {
    values[0] = load(p, i);
  } else {
    static_assert(n == Pack<T>::kElements);
    const auto pack = load_pack(p + i);
    for (int j = 0; j < n; ++j) values[j] = load(pack.values, j);
  }
}

// Returns whether packs of both begin at the same elements.
template <class T>
__host__ __device__ bool are_aligned(const T* a, const T* b) {
  return (reinterpret_cast<uintptr_t>(a) - reinterpret_cast<uintptr_t>(b)) % 16 == 0;
}

// Calls f with a null pointer of the element type. The functions of cuda/ops refuse other
// types before.
template <class F>
void dispatch_floating(Element element, F f) {
  switch (element) {
    case Element::float32:
      return f(static_cast<float*>(nullptr));
    case Element::float64:
      return f(static_cast<double*>(nullptr));
    case Element::bfloat16:
      return f(static_cast<__nv_bfloat16*>(nullptr));
    case Element::float16:
      return f(static_cast<__half*>(nullptr));
    default:
      throw std::invalid_argument("a kernel needs a floating point type");
  }
}

inline constexpr int kThreads = 256, kWarp = 32, kWarps = kThreads / kWarp;

// Returns the blocks for n elements with `each` elements per thread, at most 2^20.
inline unsigned blocks_for(int64_t n, int64_t each = 1) {
  const int64_t blocks = (n + kThreads * each - 1) / (kThreads * each);
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > 1 << 20 ? 1 << 20 : blocks);
}

// Two values, which are combined at once.
template <class W>
struct Two {
  W first, second;
};

// Returns the value of the thread of the warp whose number differs in these bits.
template <class W>
__device__ W shuffled(W value, int bits) {
  return __shfl_xor_sync(~0u, value, bits);
}
template <class W>
__device__ Two<W> shuffled(Two<W> value, int bits) {
  return {shuffled(value.first, bits), shuffled(value.second, bits)};
}

// Combines one value of each of the kThreads threads in a fixed order; all threads get the result.
// combine: commutative.
template <class W, class Combine>
__device__ W block_reduce(W value, Combine combine) {
  for (int apart = kWarp / 2; apart > 0; apart /= 2) value = combine(value, shuffled(value, apart));
  __shared__ W shared[kWarps];
  __syncthreads();  // all threads have read the values of the last call
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  W result = shared[0];
  for (int k = 1; k < kWarps; ++k) result = combine(result, shared[k]);
  return result;
}

template <class W>
__device__ W block_sum(W value) {
  return block_reduce(value, [](W a, W b) { return a + b; });
}
template <class W>
__device__ Two<W> block_sum(Two<W> value) {
  return block_reduce(value, [](Two<W> a, Two<W> b) {
    return Two<W>{a.first + b.first, a.second + b.second};
  });
}

}  // namespace perigee::cuda
