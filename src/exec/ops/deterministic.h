// Ops that have no kernel whose results are the same from run to run.
#pragma once

#include <string>

#include "exec/ops/op.h"

namespace perigee::exec {

// Has LibTorch refuse such kernels instead of taking them, in the whole process. Before its first
// matrix product on a GPU.
void refuse_nondeterministic();

// Returns the kernel of the op; what LibTorch refuses is an Error that names the op and what to do.
Kernel deterministic_only(Kernel kernel, std::string op);

}  // namespace perigee::exec
