// The way to the CUDA plugin (src/cuda), which is opened only for work on GPUs.
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
  std::string id;            // 16 bytes; one GPU, or part of one, has it in every process

  // Whether kernels are built for it.
  bool usable() const { return major >= 8; }
  // Whether it multiplies eight-bit floats (aten::_scaled_mm).
  bool multiplies_eight_bits() const { return major > 8 || (major == 8 && minor >= 9); }
};

struct CudaDeviceOptions {
  int index = 0;  // of the GPU in this process
  // Kernels whose results are bit-equal from run to run, slower ones where needed; holds for all of
  // LibTorch's CUDA work in the process.
  bool deterministic = false;
};

// What the plugin offers. Calls throw Error naming the CUDA or NCCL call, the device and a remedy.
class CudaHost {
 public:
  virtual ~CudaHost() = default;

  // Returns the GPUs that this process can use, and where there are none the reason.
  struct Gpus {
    std::vector<GpuInfo> found;
    std::string why_none;
  };
  virtual Gpus gpus() = 0;

  // Returns the GPU for one rank. Throws Error where there is no such GPU.
  virtual std::shared_ptr<Device> device(const CudaDeviceOptions& options) = 0;

  // Returns this rank's communicator over NCCL once all ranks have come; every rank has a GPU of
  // its own, which is `device`.
  virtual std::unique_ptr<Communicator> communicator(const RendezvousOptions& options,
                                                     std::shared_ptr<Device> device) = 0;

  // Returns a communicator for tensors on GPUs that sends them by way of the host through another
  // one: for ranks that share a GPU, which NCCL refuses.
  virtual std::unique_ptr<Communicator> by_host(std::shared_ptr<Communicator> inner) = 0;

  struct Versions {
    std::string cuda, nccl;  // of the libraries
    std::string driver;      // of CUDA that it serves, or that there is none
  };
  // For people.
  virtual Versions versions() = 0;
};

// Returns true where this machine seems to have an NVIDIA GPU: looks for its driver, loads nothing.
bool gpu_driver_present();

// Returns whether the plugin lies beside this library; loads nothing.
bool cuda_part_present();

// Opens the plugin, once, and returns it. Call it before anything asks LibTorch
// whether it has CUDA: that answer is kept for good. Throws Error when the plugin was not built or
// cannot be loaded, or came too late.
CudaHost& cuda_host();

}  // namespace perigee::exec
