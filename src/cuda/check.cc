#include "cuda/check.h"

#include "base/fail.h"

namespace perigee::cuda {

std::string version_text(int number) {
  return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

std::string remedy(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "; use more ranks, smaller microbatches, recomputation or a smaller model";
    case cudaErrorInsufficientDriver: {
      // 0 without a driver, which is the same error.
      int driver = 0, needed = 0;
      calls().cudaDriverGetVersion(&driver);
      calls().cudaRuntimeGetVersion(&needed);
      const auto found = driver == 0 ? ""
                                     : fmt::format(": it is for CUDA {}, and {} is needed",
                                                   version_text(driver), version_text(needed));
      return found +
             "; install an NVIDIA driver for CUDA 13 (580 or later), or use device = \"cpu\"";
    }
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
      return "; another process holds the GPU: nvidia-smi names it. End it, or choose other GPUs "
             "(cluster.devices)";
    case cudaErrorPeerAccessUnsupported:
      return "; the GPUs reach each other through the host only: set NCCL_P2P_DISABLE=1";
    case cudaErrorUnknown:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorContained:
    case cudaErrorSystemNotReady:
      return "; the GPU has failed: nvidia-smi -q and the kernel's log (Xid) tell more. Reset it, "
             "or leave it out (cluster.devices), and continue with --resume";
    default:
      return "";
  }
}

void fail_on(int device, const char* call, cudaError_t error) {
  fail_run("cuda", "{} on {} must work, but got: {} ({}){}", call,
           device >= 0 ? fmt::format("GPU {}", device) : "no GPU",
           calls().cudaGetErrorString(error), calls().cudaGetErrorName(error), remedy(error));
}

void check(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  // Clears the error, unless it is sticky.
  calls().cudaGetLastError();
  int device = -1;
  if (calls().cudaGetDevice(&device) != cudaSuccess) device = -1;
  fail_on(device, call, result);
}

}  // namespace perigee::cuda
