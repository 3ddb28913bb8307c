// The device of parity tests: the CPU, or with PERIGEE_TEST_DEVICE=cuda all ranks on GPU 0, which
// chooses kernels as in jobs; with "cuda deterministic", as in jobs with cluster.deterministic.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "exec/comm/communicator.h"
#include "exec/cuda.h"

namespace perigee {

inline std::string_view wanted_device() {
  const char* device = std::getenv("PERIGEE_TEST_DEVICE");
  return device ? device : "";
}
inline bool on_gpu() { return wanted_device().starts_with("cuda"); }
inline bool deterministic() { return wanted_device() == "cuda deterministic"; }

// Opens the CUDA plugin before any other use of CUDA. Without a GPU, the program ends with the line
// that ctest reads as a skipped test. Other errors are thrown when a device is created.
inline const bool kCudaOpened = [] {
  if (!on_gpu()) return false;
  if (!exec::gpu_driver_present()) {
    std::puts("skipped: no GPU on this machine");
    std::fflush(stdout);
    std::_Exit(4);
  }
  try {
    exec::cuda_host();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}();

inline std::shared_ptr<exec::Device> test_device() {
  return on_gpu() ? exec::cuda_host().device({.deterministic = deterministic()})
                  : exec::cpu_device();
}

// A rank's device and its communicator.
struct TestRank {
  explicit TestRank(exec::Communicator& ranks)
      : device(test_device()), communicator(std::shared_ptr<void>(), &ranks) {
    if (on_gpu()) communicator = exec::cuda_host().by_host(communicator);
  }
  std::shared_ptr<exec::Device> device;
  std::shared_ptr<exec::Communicator> communicator;
};

}  // namespace perigee
