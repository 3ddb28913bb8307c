// The launch of a kernel. Tests compile the kernels as C++ for the host, and bring a launch that
// runs the threads of a block one after the other (tests/cuda/host/launch.h).
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

namespace perigee::cuda {

#ifdef __CUDACC__
// Launches `kernel` on the stream with `threads` threads a block.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 blocks, unsigned threads, cudaStream_t stream,
            Arguments&&... arguments) {
  kernel<<<blocks, threads, 0, stream>>>(std::forward<Arguments>(arguments)...);
}
#endif

}  // namespace perigee::cuda
