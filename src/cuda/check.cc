#include "cuda/check.h"

#include "base/fail.h"

namespace perigee::cuda {

std::string remedy(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "; use more ranks, smaller microbatches, recomputation or a smaller model";
    case cudaErrorInsufficientDriver:
      return "; install an NVIDIA driver for CUDA 13 (580 or later), or use device = \"cpu\"";
    case cudaErrorNoDevice:
      return "; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use device = \"cpu\"";
    case cudaErrorInvalidDevice:
      return "; use at most as many ranks as this host has GPUs";
    case cudaErrorNoKernelImageForDevice:
      return "; this GPU is older than compute capability 8.0: use device = \"cpu\"";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
      return "; a kernel failed: CUDA_LAUNCH_BLOCKING=1 makes the message name its op";
    case cudaErrorDevicesUnavailable:
      return "; another process holds the GPU";
    default:
      return "";
  }
}

void check(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  // Clears the error, unless it is sticky.
  calls().cudaGetLastError();
  int device = -1;
  const bool known = calls().cudaGetDevice(&device) == cudaSuccess;
  fail_run("cuda", "{} on {} must work, but got: {} ({}){}", call,
           known ? fmt::format("GPU {}", device) : "no GPU", calls().cudaGetErrorString(result),
           calls().cudaGetErrorName(result), remedy(result));
}

}  // namespace perigee::cuda
