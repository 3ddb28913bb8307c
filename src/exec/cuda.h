// The CUDA plugin (src/cuda), which is loaded only for work on GPUs.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exec/comm/communicator.h"
#include "exec/comm/rendezvous.h"
#include "exec/device.h"

namespace perigee::exec {

struct GpuInfo {
  std::string name;
  int64_t memory = 0;        // bytes
  int major = 0, minor = 0;  // compute capability
  int64_t processors = 0;    // streaming multiprocessors
  std::string id;            // 16 bytes; the same in every process, unique to a GPU or part of one

  // Returns whether the plugin has kernels for it.
  bool usable() const { return major >= 8; }
  // Returns whether it multiplies eight-bit floats (aten::_scaled_mm).
  bool multiplies_eight_bits() const { return major > 8 || (major == 8 && minor >= 9); }
};

struct CudaDeviceOptions {
  int index = 0;  // of the GPU in this process
  // Use only kernels whose results are bit-equal from run to run, even if slower. Applies to all of
  // LibTorch's CUDA work in the process.
  bool deterministic = false;
  // Let float32 products and convolutions round their factors to TF32. Applies to all of LibTorch's
  // CUDA work in the process.
  bool tf32 = false;
};

// The plugin's interface. Calls throw Error naming the CUDA or NCCL call, the device and a remedy.
class CudaHost {
 public:
  virtual ~CudaHost() = default;

  // Returns the GPUs that this process can use, or the reason why it can use none.
  struct Gpus {
    std::vector<GpuInfo> found;
    std::string why_none;
  };
  virtual Gpus gpus() = 0;

  // Returns the GPU for one rank. Throws Error where there is no such GPU.
  virtual std::shared_ptr<Device> device(const CudaDeviceOptions& options) = 0;

  // Returns this rank's communicator over NCCL, after all ranks have joined. Requires a GPU per
  // rank; `device` is this rank's.
  virtual std::unique_ptr<Communicator> communicator(const RendezvousOptions& options,
                                                     std::shared_ptr<Device> device) = 0;

  // Returns a communicator for GPU tensors that copies them to the host and communicates there over
  // `inner`: for ranks that share a GPU, which NCCL refuses.
  virtual std::unique_ptr<Communicator> by_host(std::shared_ptr<Communicator> inner) = 0;

  // Runs a kernel, a matrix product, a copy to pinned memory and back, and a sum by NCCL with one
  // rank on a GPU. Returns "" where all results are right, else the first failure.
  virtual std::string try_gpu(int index) = 0;

  struct Versions {
    std::string cuda, nccl;  // of the libraries
    std::string driver;  // the CUDA version that the driver supports, or a note that none is there
  };
  // Returns version texts for reports.
  virtual Versions versions() = 0;
};

// Returns whether the machine has an NVIDIA driver, and so probably a GPU. Loads nothing.
bool gpu_driver_present();

// Returns whether the plugin is installed next to this library. Loads nothing.
bool cuda_part_present();

// Loads the plugin at the first call and returns it. Call it before anything asks LibTorch whether
// it has CUDA, since LibTorch caches the answer. Throws Error when the plugin was not built, cannot
// be loaded, or was loaded after that answer.
CudaHost& cuda_host();

}  // namespace perigee::exec
