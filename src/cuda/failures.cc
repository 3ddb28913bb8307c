#include "cuda/failures.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "base/fail.h"
#include "cuda/check.h"

namespace perigee::cuda {

std::string memory_state(int device, int64_t own) {
  size_t free = 0, total = 0;
  if (calls().cudaMemGetInfo(&free, &total) != cudaSuccess) {
    calls().cudaGetLastError();
    return remedy(cudaErrorMemoryAllocation);
  }
  const auto others = std::max<int64_t>(0, static_cast<int64_t>(total - free) - own);
  return fmt::format(
      "{} of the {} bytes of GPU {} are free: this rank holds {}, libraries and other processes "
      "(nvidia-smi lists them) hold {}{}",
      free, total, device, own, others, remedy(cudaErrorMemoryAllocation));
}

exec::Kernel with_remedies(exec::Kernel kernel, int device, std::function<int64_t()> own) {
  return [kernel = std::move(kernel), device, own = std::move(own)](
             std::span<const at::Tensor> operands, std::span<at::Tensor> outputs,
             const exec::Draw& draw) {
    try {
      kernel(operands, outputs, draw);
    } catch (const c10::OutOfMemoryError&) {
      calls().cudaGetLastError();
      fail_run("exec", "LibTorch needs more memory, but {}", memory_state(device, own()));
    } catch (const c10::AcceleratorError& error) {
      calls().cudaGetLastError();
      fail_on(device, "an op", static_cast<cudaError_t>(error.get_error_code()));
    }
  };
}

}  // namespace perigee::cuda
