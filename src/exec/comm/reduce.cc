#include "exec/comm/reduce.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <vector>

#include "exec/kernels/element.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace perigee::exec {
namespace {

using mesh::Reduce;

// The type that elements are added up in. No sum of integers over ranks overflows it.
template <class T>
struct SumType {
  using type = at::opmath_type<T>;
};
template <class T>
requires std::is_integral_v<T>
struct SumType<T> {
  using type = std::conditional_t<(sizeof(T) < sizeof(int64_t)), int64_t, __int128>;
};

// add: to += x; widen: to = x. `to` is in a cache, x in memory.
#define PERIGEE_STREAM(NAME, OP, W, T)                                 \
  PERIGEE_SIMD void NAME(W* to, const T* x, int64_t n) {               \
    each_in_pieces(                                                    \
        n, [&](int64_t i) PERIGEE_LAMBDA { fetch_ahead<2048>(x, i); }, \
        [&](int64_t i) PERIGEE_LAMBDA { to[i] OP load(x, i); });       \
  }
#define PERIGEE_STREAMS(W, T)   \
  PERIGEE_STREAM(add, +=, W, T) \
  PERIGEE_STREAM(widen, =, W, T)
PERIGEE_STREAMS(float, float)
PERIGEE_STREAMS(double, double)
PERIGEE_STREAMS(float, c10::BFloat16)
#undef PERIGEE_STREAMS
#undef PERIGEE_STREAM
template <class W, class T>
void add(W* sum, const T* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += static_cast<W>(x[i]);
}

// widen: elements of another type as those that are added up; narrow: back.
PERIGEE_SIMD void narrow(c10::BFloat16* to, const float* tile, int64_t n) {
  for (int64_t i = 0; i < n; ++i) store(to, i, tile[i]);
}
template <class W, class T>
void widen(W* tile, const T* x, int64_t n) {
  if constexpr (std::is_same_v<W, T>) {
    std::memcpy(tile, x, static_cast<size_t>(n) * sizeof(T));
  } else {
    for (int64_t i = 0; i < n; ++i) tile[i] = static_cast<W>(x[i]);
  }
}
template <class T, class W>
void narrow(T* to, const W* tile, int64_t n) {
  if constexpr (std::is_same_v<W, T>) {
    std::memcpy(to, tile, static_cast<size_t>(n) * sizeof(T));
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(tile[i]);
  }
}

#if defined(__x86_64__)
// Copies whole vectors past the caches, and returns the bytes that it has copied.
size_t stream(void* to, const void* from, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(to) % sizeof(__m128i) != 0) return 0;
  auto* target = static_cast<__m128i*>(to);
  const auto* source = static_cast<const __m128i*>(from);
  const size_t vectors = bytes / sizeof(__m128i);
  for (size_t i = 0; i < vectors; ++i) _mm_stream_si128(target + i, _mm_loadu_si128(source + i));
  return vectors * sizeof(__m128i);
}
void end_stream() { _mm_sfence(); }
#else
size_t stream(void*, const void*, size_t) { return 0; }
void end_stream() {}
#endif

template <class T, class W>
void narrow(T* to, const W* tile, int64_t n, bool streams) {
  if constexpr (std::is_same_v<W, T>) {
    const auto bytes = static_cast<size_t>(n) * sizeof(T);
    const auto streamed = streams ? stream(to, tile, bytes) : 0;
    std::memcpy(reinterpret_cast<std::byte*>(to) + streamed,
                reinterpret_cast<const std::byte*>(tile) + streamed, bytes - streamed);
    return;
  }
  narrow(to, tile, n);
}
template <class T, class W>
void combine(W* tile, const T* x, int64_t n, Reduce reduce) {
  switch (reduce) {
    case Reduce::sum:
    case Reduce::average:
      return add(tile, x, n);
    case Reduce::max:
      for (int64_t i = 0; i < n; ++i) {
        const auto v = static_cast<W>(x[i]);
        tile[i] = v > tile[i] || v != v ? v : tile[i];  // NaN stays
      }
      return;
    case Reduce::min:
      for (int64_t i = 0; i < n; ++i) {
        const auto v = static_cast<W>(x[i]);
        tile[i] = v < tile[i] || v != v ? v : tile[i];
      }
  }
}

}  // namespace

void reduce_elements(at::ScalarType type, std::span<const std::byte* const> inputs,
                     std::span<std::byte* const> outputs, Reduce reduce, int64_t begin, int64_t end,
                     bool streams) {
  if (c10::isComplexType(type)) {  // pairs of reals
    return reduce_elements(c10::toRealValueType(type), inputs, outputs, reduce, 2 * begin, 2 * end,
                           streams);
  }
  AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, type, "reduce", [&] {
    using W = typename SumType<scalar_t>::type;
    constexpr int64_t kTile = 2048;
    alignas(64) std::array<W, kTile> tile;
    for (int64_t at = begin; at < end; at += kTile) {
      const int64_t n = std::min(kTile, end - at);
      widen(tile.data(), reinterpret_cast<const scalar_t*>(inputs[0]) + at, n);
      for (const auto* input : inputs.subspan(1)) {
        combine(tile.data(), reinterpret_cast<const scalar_t*>(input) + at, n, reduce);
      }
      if (reduce == Reduce::average) {
        const auto ranks = static_cast<W>(inputs.size());
        for (int64_t i = 0; i < n; ++i) tile[i] /= ranks;
      }
      for (auto* output : outputs) {
        // The lines of an input are in a cache.
        const bool past = streams && std::ranges::find(inputs, output) == inputs.end();
        narrow(reinterpret_cast<scalar_t*>(output) + at, tile.data(), n, past);
      }
    }
  });
  if (streams) end_stream();
}

void reduce_elements(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs,
                     Reduce reduce, int64_t begin, int64_t end) {
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to;
  for (const auto& input : inputs) {
    from.push_back(static_cast<const std::byte*>(input.const_data_ptr()));
  }
  for (const auto& output : outputs) {
    to.push_back(static_cast<std::byte*>(output.mutable_data_ptr()));
  }
  reduce_elements(inputs[0].scalar_type(), from, to, reduce, begin, end);
}

}  // namespace perigee::exec
