// Strides of an op's results on a GPU.
#pragma once

#include <optional>

#include "compile/trace.h"
#include "cuda/device.h"

namespace perigee::cuda {

// Runs the op on the GPU on operands of zeros and returns an incomplete trace: the strides of its
// results, each as an allocation of its own. Other allocations come from LibTorch's allocator and
// are not traced. Throws Error when the op fails or its operands do not fit on the GPU.
std::optional<compile::OpTrace> dry_run(CudaDevice& device, const compile::OpInstance& instance);

}  // namespace perigee::cuda
