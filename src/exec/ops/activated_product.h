// Products that compute GELU or its gradient, from the kernels of both.
#pragma once

#include <functional>

#include "exec/ops/op.h"

namespace perigee::exec {

// Returns the kernel of perigee::mm_gelu or mm_gelu_backward (graph/ops.h): those of aten::mm or
// aten::addmm and then of aten::gelu or perigee::gelu_backward_sum, as `kernel_of` gives them.
Kernel compose_product(const Arguments& arguments,
                       const std::function<Kernel(const Op&)>& kernel_of);

}  // namespace perigee::exec
