// The types of an op's results on a GPU.
#pragma once

#include <optional>

#include "compile/trace.h"
#include "cuda/device.h"

namespace perigee::cuda {

// Runs the op on the GPU on operands of zeros and returns how its results lie, each in an
// allocation of its own: what else it takes comes from LibTorch's allocator and is in no trace.
// Throws Error when the op fails or its operands do not fit on the GPU.
std::optional<compile::OpTrace> dry_run(CudaDevice& device, const compile::OpInstance& instance);

}  // namespace perigee::cuda
