// Which device parity tests run on: the CPU, or with PERIGEE_TEST_DEVICE=cuda all ranks on GPU 0.
#pragma once

#include <cstdlib>
#include <memory>
#include <string_view>

#include "exec/communicator.h"
#include "exec/cuda.h"

namespace perigee {

inline bool on_gpu() {
  const char* device = std::getenv("PERIGEE_TEST_DEVICE");
  return device && std::string_view(device) == "cuda";
}

// Before LibTorch is asked for CUDA by anything else. What fails here is thrown again where a
// device is made.
inline const bool kCudaOpened = [] {
  if (!on_gpu()) return false;
  try {
    exec::cuda_host();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}();

// A rank's device and the communicator that reaches the others from there.
struct TestRank {
  explicit TestRank(exec::Communicator& ranks) {
    if (!on_gpu()) {
      device = exec::cpu_device();
      communicator = {std::shared_ptr<void>(), &ranks};
      return;
    }
    device = exec::cuda_host().device({});
    communicator = exec::cuda_host().by_host(
        std::shared_ptr<exec::Communicator>(std::shared_ptr<void>(), &ranks));
  }
  std::shared_ptr<exec::Device> device;
  std::shared_ptr<exec::Communicator> communicator;
};

}  // namespace perigee
