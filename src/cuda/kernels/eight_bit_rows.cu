// Matrices rounded to eight-bit floats with a scale for each row, which its largest magnitude gives.
#include <algorithm>

#include "cuda/kernels/eight_bits.cuh"

namespace perigee::cuda {
namespace {

// Returns the scale by which `amax` becomes `largest`; 1 where amax is 0 or NaN, or so small that the
// scale would be infinite.
__device__ float scale_of(float amax, float largest) {
  const float scale = largest / amax;
  return amax > 0 && isfinite(scale) ? scale : 1;
}

// All threads of a block get the largest magnitude of a row.
template <class T>
__device__ float magnitude_of(const T* row, int64_t columns) {
  float most = 0;
  for_row(row, columns, elements_to_pack(row), [&](int64_t, const auto& values) {
    for (const auto& value : values) most = larger(fabsf(static_cast<float>(value)), most);
  });
  return block_reduce(most, larger);
}

// A block has a row.
template <class T>
__global__ void row_magnitudes(const T* x, float* out, int64_t columns) {
  const float most = magnitude_of(x + blockIdx.x * columns, columns);
  if (threadIdx.x == 0) out[blockIdx.x] = most;
}

// A block has a row.
template <class T>
__global__ void cast_rows(const T* x, const float* amax, uint8_t* y, float* inverse,
                          int64_t columns, EightBits format) {
  x += blockIdx.x * columns;
  y += blockIdx.x * columns;
  const float most = amax ? amax[blockIdx.x] : magnitude_of(x, columns);
  const float factor = scale_of(most, format.largest);
  for_row(x, columns, elements_to_pack(x), [&](int64_t i, const auto& values) {
    constexpr int kEach = sizeof(values) / sizeof(values[0]);
    struct alignas(kEach) Bytes {
      uint8_t values[kEach];
    } bytes;
    for (int j = 0; j < kEach; ++j) {
      bytes.values[j] = rounded(values[j], factor, format_of(format.e5m2));
    }
    if (reinterpret_cast<uintptr_t>(y + i) % kEach == 0) {
      *reinterpret_cast<Bytes*>(y + i) = bytes;
    } else {
      for (int j = 0; j < kEach; ++j) y[i + j] = bytes.values[j];
    }
  });
  if (threadIdx.x == 0) inverse[blockIdx.x] = 1 / factor;
}

// A block has 64 columns (blockIdx.x) of one of `parts` ranges of rows (blockIdx.y).
template <class T>
__global__ void column_magnitudes(const T* x, float* out, int64_t parts, Rows shape) {
  constexpr int kApart = kThreads / kTile;
  __shared__ float shared[kApart][kTile];
  const int64_t part = blockIdx.y, end = shape.rows * (part + 1) / parts;
  const int c = threadIdx.x % kTile, r = threadIdx.x / kTile;
  const int64_t column = int64_t{blockIdx.x} * kTile + c;
  float most = 0;
  if (column < shape.columns) {
    for (int64_t row = shape.rows * part / parts + r; row < end; row += kApart) {
      most = larger(fabsf(static_cast<float>(load(x, row * shape.columns + column))), most);
    }
  }
  shared[r][c] = most;
  __syncthreads();
  if (r > 0 || column >= shape.columns) return;
  for (int k = 1; k < kApart; ++k) most = larger(shared[k][c], most);
  out[part * shape.columns + column] = most;
}

// A block has a tile of 64 rows and 64 columns of x, and writes it by columns.
template <class T>
__global__ void cast_columns(const T* x, const float* amax, uint8_t* y, float* inverse, Rows shape,
                             EightBits format) {
  __shared__ float factors[kTile];
  const int64_t column = int64_t{blockIdx.y} * kTile + threadIdx.x;
  if (threadIdx.x < kTile && column < shape.columns) {
    factors[threadIdx.x] = scale_of(amax[column], format.largest);
    if (blockIdx.x == 0) inverse[column] = 1 / factors[threadIdx.x];
  }
  __syncthreads();
  transpose_tile(x, y, shape, [&](int c, auto value) {
    return rounded(value, factors[c], format_of(format.e5m2));
  });
}

}  // namespace

void magnitudes_of_rows(const void* x, float* out, Rows shape, Element element,
                        cudaStream_t stream) {
  if (shape.rows == 0) return;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(row_magnitudes<T>, static_cast<unsigned>(shape.rows), kThreads, stream,
           static_cast<const T*>(x), out, shape.columns);
  });
}

void cast_rows_to_eight_bits(const void* x, const float* amax, void* y, float* inverse, Rows shape,
                             Element element, EightBits format, cudaStream_t stream) {
  if (shape.rows == 0) return;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(cast_rows<T>, static_cast<unsigned>(shape.rows), kThreads, stream,
           static_cast<const T*>(x), amax, static_cast<uint8_t*>(y), inverse, shape.columns,
           format);
  });
}

void magnitudes_of_columns(const void* x, float* partials, int64_t parts, float* out, Rows shape,
                           Element element, cudaStream_t stream) {
  if (shape.columns == 0) return;
  const auto grid = [&](int64_t of) {
    return dim3(static_cast<unsigned>(tiles(shape.columns)), static_cast<unsigned>(of));
  };
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(column_magnitudes<T>, grid(parts), kThreads, stream, static_cast<const T*>(x), partials,
           parts, shape);
  });
  launch(column_magnitudes<float>, grid(1), kThreads, stream, static_cast<const float*>(partials),
         out, int64_t{1}, Rows{parts, shape.columns});
}

void cast_columns_to_eight_bits(const void* x, const float* amax, void* y, float* inverse,
                                Rows shape, Element element, EightBits format,
                                cudaStream_t stream) {
  if (shape.columns == 0) return;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const dim3 grid(static_cast<unsigned>(std::max<int64_t>(tiles(shape.rows), 1)),
                    static_cast<unsigned>(tiles(shape.columns)));
    launch(cast_columns<T>, grid, kThreads, stream, static_cast<const T*>(x), amax,
           static_cast<uint8_t*>(y), inverse, shape, format);
  });
}

}  // namespace perigee::cuda
