// Allocations of an op on a GPU, and the strides of its results.
#pragma once

#include <optional>

#include "compile/trace.h"
#include "cuda/device.h"

namespace perigee::cuda {

// Runs the op on the GPU on operands of zeros and returns its trace (exec::trace_with_copies). The
// trace of an op that keeps memory beyond its run lists the results alone and is incomplete. Throws
// Error when the op fails or its operands do not fit on the GPU.
std::optional<compile::OpTrace> dry_run(CudaDevice& device, const compile::OpInstance& instance);

}  // namespace perigee::cuda
