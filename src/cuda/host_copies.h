// Copies between a GPU and pinned memory of its host, concurrent with ops.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string_view>

#include "cuda/device.h"
#include "exec/comm/communicator.h"

namespace perigee::cuda {

// The purpose of pinned memory and the remedy where there is not enough: parts of an error.
struct PinnedUse {
  std::string_view purpose = "offloading";
  std::string_view remedy = "offload less";
};

// Returns zeroed pinned memory. Throws Error when the host cannot allocate it.
std::shared_ptr<std::byte> pinned_memory(int64_t bytes, const PinnedUse& use = {});

// Copies in one direction, on a stream of their own.
class HostCopies {
 public:
  explicit HostCopies(CudaDevice& device);

  // Starts a copy (exec::Device::copy). The device must outlive the work.
  std::shared_ptr<exec::Work> start(const at::Tensor& to, const at::Tensor& from);

 private:
  CudaDevice& device_;
  Stream stream_;
};

}  // namespace perigee::cuda
