// LibTorch's allocator on GPUs, with planned addresses: a thread's allocations are served where the
// op that runs has planned them (exec/memory/served_allocations.h), all others by the allocator that
// was installed before.
#pragma once

#include <vector>

#include "exec/memory/allocator.h"
#include "exec/memory/served_allocations.h"

namespace perigee::cuda {

// Installs it in this process, over LibTorch's; later calls do nothing. Existing tensors stay valid.
void install_torch_allocator();

}  // namespace perigee::cuda
