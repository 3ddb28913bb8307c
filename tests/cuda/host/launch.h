// CUDA's words for kernels that are compiled for the host (.cmake/tests.cmake includes this header
// before each .cu file). The threads of a block are fibers of one thread: they take turns at
// barriers, so that memory which is read before a barrier that is missing has a wrong value in one
// of the two orders.
#pragma once

#include <cuda_runtime_api.h>
#include <math.h>

#include <bit>
#include <functional>

#include "tests/cuda/host/thread_order.h"

// A kernel's shared memory: the blocks run one after the other.
#undef __shared__
#define __shared__ static

namespace perigee::cuda {

struct Coordinates {
  unsigned x = 0, y = 0, z = 0;
};
extern Coordinates threadIdx, blockIdx, blockDim, gridDim;

void __syncthreads();
void __syncwarp();

inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline double __longlong_as_double(long long bits) { return std::bit_cast<double>(bits); }

template <class T>
void __stwb(T* to, const T& value) {
  *to = value;
}

// Returns 1 and 0 alternately, for each thread.
unsigned next_turn();

// Returns the value of the thread of the warp whose number differs in these bits. Threads write the
// values of the next call to another place, because some have not yet read those of this one.
template <class T>
T __shfl_xor_sync(unsigned, T value, int bits) {
  static T values[2][1024];
  auto& now = values[next_turn()];
  now[threadIdx.x] = value;
  __syncwarp();
  return now[threadIdx.x ^ static_cast<unsigned>(bits)];
}

// Threads run one at a time.
inline int atomicCAS_system(int* at, int expected, int desired) {
  const int old = *at;
  if (old == expected) *at = desired;
  return old;
}
inline void __threadfence_system() {}

// Runs every thread of every block. Throws std::logic_error where threads of a block leave the
// kernel while others wait at a barrier.
void run_blocks(dim3 blocks, unsigned threads, const std::function<void()>& body);

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 blocks, unsigned threads, cudaStream_t,
            Arguments&&... arguments) {
  run_blocks(blocks, threads, [&] { kernel(arguments...); });
}

}  // namespace perigee::cuda
