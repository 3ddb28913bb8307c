// Numbers rounded to eight-bit floats, and the largest magnitudes that their scales are made of.
#include <algorithm>

#include "cuda/kernels/eight_bits.cuh"

namespace perigee::cuda {
namespace {

constexpr unsigned kMostCastParts = 1024;  // blocks of a cast that makes a magnitude

// The largest magnitude of what a thread has seen, where one is wanted.
class Magnitude {
 public:
  // `largest`: by block; or nullptr, the same in all threads.
  __device__ explicit Magnitude(float* largest) : largest_(largest) {}
  template <class W>
  __device__ W seen(W x) {
    if (largest_) most_ = larger(fabsf(static_cast<float>(x)), most_);
    return x;
  }
  // All threads of the block call it at last.
  __device__ void write(int64_t block) {
    if (!largest_) return;
    const float most = block_reduce(most_, larger);
    if (threadIdx.x == 0) largest_[block] = most;
  }

 private:
  float* largest_;
  float most_ = 0;
};

template <class T>
__global__ void cast(const T* x, const float* scale, uint8_t* y, int64_t n,
                     __nv_fp8_interpretation_t format, float* largest) {
  const float factor = *scale;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  Magnitude magnitude(largest);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    y[i] = rounded(magnitude.seen(load(x, i)), factor, format);
  }
  magnitude.write(blockIdx.x);
}

// As many numbers at a time as a pack of T has; x and y begin at multiples of their accesses.
template <class T>
__global__ void cast_packs(const T* x, const float* scale, uint8_t* y, int64_t packs,
                           __nv_fp8_interpretation_t format, float* largest) {
  constexpr int kEach = Pack<T>::kElements;
  struct alignas(kEach) Bytes {
    uint8_t values[kEach];
  };
  const float factor = *scale;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  Magnitude magnitude(largest);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < packs; i += step) {
    const auto pack = load_pack(x + i * kEach);
    Bytes bytes;
    for (int j = 0; j < kEach; ++j) {
      bytes.values[j] = rounded(magnitude.seen(load(pack.values, j)), factor, format);
    }
    reinterpret_cast<Bytes*>(y)[i] = bytes;
  }
  magnitude.write(blockIdx.x);
}

// A block has a tile of 64 rows and 64 columns of x, and writes it by columns.
template <class T>
__global__ void cast_transposed(const T* x, const float* scale, uint8_t* y, Rows shape,
                                __nv_fp8_interpretation_t format, float* largest) {
  const float factor = *scale;
  Magnitude magnitude(largest);
  transpose_tile(x, y, shape,
                 [&](int, auto value) { return rounded(magnitude.seen(value), factor, format); });
  magnitude.write(int64_t{blockIdx.y} * gridDim.x + blockIdx.x);
}

// The largest magnitudes of pieces of x, one for each block.
template <class T>
__global__ void magnitudes(const T* x, float* largest, int64_t n) {
  const int64_t each = (n + gridDim.x - 1) / gridDim.x, begin = each * blockIdx.x;
  const int64_t count = n - begin < each ? n - begin : each;
  float most = 0;
  for_row(x + begin, count < 0 ? 0 : count, elements_to_pack(x + begin),
          [&](int64_t, const auto& values) {
            for (const auto& value : values) most = larger(fabsf(static_cast<float>(value)), most);
          });
  most = block_reduce(most, larger);
  if (threadIdx.x == 0) largest[blockIdx.x] = most;
}

// Writes the largest of the parts' magnitudes, where one is wanted.
void join(const CastMagnitude& magnitude, int64_t parts, cudaStream_t stream) {
  if (!magnitude.out) return;
  launch(magnitudes<float>, 1, kThreads, stream, static_cast<const float*>(magnitude.workspace),
         magnitude.out, parts);
}

}  // namespace

int64_t workspace_of_cast(Rows shape, bool transposed) {
  return transposed ? tiles(shape.rows) * tiles(shape.columns) : kMostCastParts + 1;
}

void cast_to_eight_bits(const void* x, const float* scale, void* y, int64_t n, Element element,
                        bool e5m2, CastMagnitude magnitude, cudaStream_t stream) {
  const auto blocks = [&](unsigned wanted) {
    return magnitude.out ? std::min<unsigned>(wanted, kMostCastParts) : wanted;
  };
  unsigned parts = 0;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int kEach = Pack<T>::kElements;
    const auto* from = static_cast<const T*>(x);
    auto* to = static_cast<uint8_t*>(y);
    const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0 &&
                         reinterpret_cast<uintptr_t>(y) % kEach == 0;
    const int64_t packs = aligned ? n / kEach : 0, rest = n - packs * kEach;
    if (packs > 0) {
      parts = blocks(blocks_for(packs));
      launch(cast_packs<T>, parts, kThreads, stream, from, scale, to, packs, format_of(e5m2),
             magnitude.workspace);
    }
    if (rest > 0) {  // after packs: fewer elements than one has
      const auto more = blocks(blocks_for(rest, 4));
      launch(cast<T>, more, kThreads, stream, from + packs * kEach, scale, to + packs * kEach, rest,
             format_of(e5m2), magnitude.workspace ? magnitude.workspace + parts : nullptr);
      parts += more;
    }
  });
  join(magnitude, parts, stream);
}

void cast_transposed_to_eight_bits(const void* x, const float* scale, void* y, Rows shape,
                                   Element element, bool e5m2, CastMagnitude magnitude,
                                   cudaStream_t stream) {
  const auto parts = tiles(shape.rows) * tiles(shape.columns);
  if (parts > 0) {
    dispatch_floating(element, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const dim3 grid(static_cast<unsigned>(tiles(shape.rows)),
                      static_cast<unsigned>(tiles(shape.columns)));
      launch(cast_transposed<T>, grid, kThreads, stream, static_cast<const T*>(x), scale,
             static_cast<uint8_t*>(y), shape, format_of(e5m2), magnitude.workspace);
    });
  }
  join(magnitude, parts, stream);
}

void largest_magnitude(const void* x, float* partials, int64_t parts, float* out, int64_t n,
                       Element element, cudaStream_t stream) {
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(magnitudes<T>, static_cast<unsigned>(parts), kThreads, stream, static_cast<const T*>(x),
           partials, n);
  });
  join({.workspace = partials, .out = out}, parts, stream);
}

}  // namespace perigee::cuda
