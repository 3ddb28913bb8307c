// Failures of memory and of LibTorch's ops on a GPU, as errors that name the GPU and a remedy.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "exec/ops/op.h"

namespace perigee::cuda {

// Returns how much of the GPU's memory is free, and who holds the rest, with a remedy. `own`: bytes
// that this process has allocated there.
std::string memory_state(int device, int64_t own);

// Returns `kernel` with failures of LibTorch on the GPU turned into an Error that names the GPU and
// a remedy: no memory, or a CUDA error. `own`: as for memory_state.
exec::Kernel with_remedies(exec::Kernel kernel, int device, std::function<int64_t()> own);

}  // namespace perigee::cuda
