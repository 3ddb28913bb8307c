// Boxed calls of LibTorch's ops on any device.
#pragma once

#include "exec/ops/op.h"

namespace perigee::exec {

// dispatcher_kernel (op.h) for a device: an op without tensor operands (aten::arange) makes its
// results there. Errors as dispatcher_kernel's.
Kernel dispatcher_kernel_on(at::Device place, const Op& op);

}  // namespace perigee::exec
