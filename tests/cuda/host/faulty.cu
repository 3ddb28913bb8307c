// Kernels with a fault that the launch on the host must show.
#include "cuda/kernels/element.cuh"
#include "tests/cuda/host/faulty.h"

namespace perigee::cuda {
namespace {

__global__ void reverse(const int* from, int* to, bool barrier) {
  __shared__ int values[kThreads];
  values[threadIdx.x] = from[threadIdx.x];
  if (barrier) __syncthreads();
  to[threadIdx.x] = values[kThreads - 1 - threadIdx.x];
}

__global__ void first_half_waits(int* to) {
  if (threadIdx.x < kThreads / 2) __syncthreads();
  to[threadIdx.x] = 1;
}

__global__ void every_second_waits(int* to) {
  if (threadIdx.x % 2 == 0) __syncthreads();
  to[threadIdx.x] = 1;
}

__global__ void fill(int* to, int64_t n, bool bound) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (!bound || i < n) to[i] = 7;
}

}  // namespace

void reverse_block(const int* from, int* to, bool barrier) {
  launch(reverse, 1, kThreads, nullptr, from, to, barrier);
}

void half_of_a_block_waits(int* to) { launch(first_half_waits, 1, kThreads, nullptr, to); }

void half_of_a_warp_waits(int* to) { launch(every_second_waits, 1, kThreads, nullptr, to); }

void fill_elements(int* to, int64_t n, bool bound) {
  launch(fill, blocks_for(n), kThreads, nullptr, to, n, bound);
}

}  // namespace perigee::cuda
