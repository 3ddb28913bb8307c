// Sums of the columns of a matrix whose rows are whole packs.
#pragma once

#include "cuda/kernels/element.cuh"

namespace perigee::cuda {

// A block sums a range of rows of 32 packs: each warp every eighth row, one pack a thread.
// read(i, values) gives the elements i, i + 1, ... of the matrix as W[k], k those of a pack; each
// pack is read once. partials [parts, columns]: row p sums the p-th of `parts` ranges of rows.
template <class T, class F>
__device__ void sum_columns(F read, Wide<T>* partials, int64_t parts, Rows shape) {
  using W = Wide<T>;
  constexpr int kEach = Pack<T>::kElements, kColumns = kWarp * kEach;
  __shared__ W shared[kWarps][kColumns];
  const int64_t part = blockIdx.y, first = int64_t{blockIdx.x} * kColumns;
  const int64_t begin = shape.rows * part / parts, end = shape.rows * (part + 1) / parts;
  const int warp = threadIdx.x / kWarp, place = threadIdx.x % kWarp * kEach;
  W sum[kEach] = {};
  if (first + place < shape.columns) {
    for (int64_t row = begin + warp; row < end; row += kWarps) {
      W values[kEach];
      read(row * shape.columns + first + place, values);
      for (int j = 0; j < kEach; ++j) sum[j] += values[j];
    }
  }
  for (int j = 0; j < kEach; ++j) shared[warp][place + j] = sum[j];
  __syncthreads();
  for (int i = threadIdx.x; i < kColumns && first + i < shape.columns; i += kThreads) {
    W total = 0;
    for (int k = 0; k < kWarps; ++k) total += shared[k][i];
    partials[part * shape.columns + first + i] = total;
  }
}

// Returns the blocks of a kernel that calls sum_columns.
template <class T>
dim3 blocks_of_columns(int64_t parts, Rows shape) {
  constexpr int64_t kColumns = int64_t{kWarp} * Pack<T>::kElements;
  return {static_cast<unsigned>((shape.columns + kColumns - 1) / kColumns),
          static_cast<unsigned>(parts)};
}

}  // namespace perigee::cuda
