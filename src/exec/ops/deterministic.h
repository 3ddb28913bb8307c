// Refusal of ops without a deterministic kernel (bit-equal results from run to run).
#pragma once

#include <string>

#include "exec/ops/op.h"

namespace perigee::exec {

// Makes LibTorch throw for nondeterministic kernels, in the whole process. Call it before the first
// matrix product on a GPU, whose cuBLAS workspace it sets.
void refuse_nondeterministic();

// Returns `kernel` with LibTorch's refusals turned into an Error that names the op and a remedy.
Kernel deterministic_only(Kernel kernel, std::string op);

}  // namespace perigee::exec
