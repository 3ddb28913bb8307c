// The stream that kernels are launched on. Tests that run kernels on the host have their own.
#include <c10/cuda/CUDAStream.h>

#include "cuda/check.h"
#include "cuda/ops/ops.h"

namespace perigee::cuda {

cudaStream_t current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

void check_launch(const char* kernel) { check(calls().cudaGetLastError(), kernel); }

}  // namespace perigee::cuda
