// The ops of a mixture of experts (graph/ops.h). On the CPU rows are copied and multiplied where
// they lie; on other devices and for other types ATen ops do the same.
#pragma once

#include "exec/ops/op.h"

namespace perigee::exec {

// Returns the op's kernel, or nothing for other ops. What it allocates does not depend on values.
Kernel expert_op(const Op& op);

}  // namespace perigee::exec
