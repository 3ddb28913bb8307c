// Runs one op on every device and compares with the reference.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exec/cuda.h"
#include "tests/exec/support.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {

using Types = std::vector<graph::TensorType>;

struct NamedDevice {
  std::string name;
  std::shared_ptr<Device> device;
};

// Returns the devices of this executable: in tests_cuda the CPU, and GPU 0 if there is one; in
// tests_cuda_host the CUDA kernels, compiled for the host. A function because the plugin must be
// opened first.
std::vector<NamedDevice> devices();

// Returns the largest relative difference of results of the type.
inline double tolerance(at::ScalarType type) {
  return type == at::kDouble ? 1e-12 : type == at::kFloat ? 3e-5 : 3e-2;
}

// Seeds LibTorch's random numbers on the CPU. Before, it loads the CUDA part, which must come before
// LibTorch's own CUDA support.
void seed(uint64_t value);

// Returns a device of host memory whose kernels are those that `kernel_of` returns. synchronize()
// calls `settle`.
std::shared_ptr<Device> host_device(
    std::string kind, std::function<Kernel(const Op&)> kernel_of,
    std::function<void()> settle = [] {});

// Returns the CPU with the reference kernels.
std::shared_ptr<Device> reference_device();

// Runs the op on copies of the operands, which begin at the same bytes of 16. Returns its results, then the operands afterwards.
std::vector<at::Tensor> run_on(Device& device, const std::string& name, const Named& tensors,
                               const Args& args, const Types& types, const Draw& draw);

// Checks that the op's results on every device equal the reference's.
void same_everywhere(const std::string& name, const Named& tensors, const Args& args,
                     const Types& types, double tolerance, const Draw& draw = {});

}  // namespace perigee::exec
