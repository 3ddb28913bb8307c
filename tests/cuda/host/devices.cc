// The CUDA kernels as a device: compiled for the host, on tensors of the CPU.
#include "cuda/ops/ops.h"
#include "tests/cuda/host/thread_order.h"
#include "tests/cuda/support.h"

namespace perigee::exec {
namespace {

// Runs the threads of each block in the given order between barriers.
std::shared_ptr<Device> kernels_device(cuda::ThreadOrder order) {
  const auto fault = std::make_shared<cuda::Fault>();
  const auto kernel_of = [order, fault](const Op& op) -> Kernel {
    const auto kernel = cuda::cuda_kernel(op, {.place = at::kCPU, .fault = fault.get()});
    return [kernel, order](std::span<const at::Tensor> in, std::span<at::Tensor> out,
                           const Draw& draw) {
      cuda::thread_order = order;
      kernel(in, out, draw);
    };
  };
  return host_device("CUDA kernels on the host", kernel_of, [fault] { cuda::take_fault(*fault); });
}

}  // namespace

// Descending first: where a barrier is missing, threads read what the kernel's last launch left in
// shared memory, which is right after a launch with the same operands.
std::vector<NamedDevice> devices() {
  return {{"CUDA kernels on the host, threads descending",
           kernels_device(cuda::ThreadOrder::descending)},
          {"CUDA kernels on the host", kernels_device(cuda::ThreadOrder::ascending)}};
}

}  // namespace perigee::exec
