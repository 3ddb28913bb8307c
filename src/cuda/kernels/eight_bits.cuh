// Numbers as eight-bit floats.
#pragma once

#include <cuda_fp8.h>

#include "cuda/kernels/element.cuh"

namespace perigee::cuda {

__host__ __device__ inline __nv_fp8_interpretation_t format_of(bool e5m2) {
  return e5m2 ? __NV_E5M2 : __NV_E4M3;
}

// Rounds to nearest even, saturating; NaN stays NaN.
template <class W>
__device__ uint8_t rounded(W x, float factor, __nv_fp8_interpretation_t format) {
  return __nv_cvt_float_to_fp8(static_cast<float>(x) * factor, __NV_SATFINITE, format);
}

// The larger number, or NaN where one of them is.
__device__ inline float larger(float a, float b) { return a > b || isnan(a) ? a : b; }

constexpr int kTile = 64;

inline int64_t tiles(int64_t n) { return (n + kTile - 1) / kTile; }

// Writes the block's tile of x [rows, columns], 64 rows (blockIdx.x) and 64 columns (blockIdx.y), to
// y [columns, rows]. byte_of(column of the tile, number): its eight bits.
template <class T, class F>
__device__ void transpose_tile(const T* x, uint8_t* y, Rows shape, F byte_of) {
  __shared__ uint8_t tile[kTile][kTile + 4];  // by column; of other banks than its neighbours
  const int64_t row = int64_t{blockIdx.x} * kTile, column = int64_t{blockIdx.y} * kTile;
  for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
    const int r = i / kTile, c = i % kTile;
    if (row + r < shape.rows && column + c < shape.columns) {
      tile[c][r] = byte_of(c, load(x, (row + r) * shape.columns + column + c));
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
    const int r = i % kTile, c = i / kTile;
    if (row + r < shape.rows && column + c < shape.columns) {
      y[(column + c) * shape.rows + row + r] = tile[c][r];
    }
  }
}

}  // namespace perigee::cuda
