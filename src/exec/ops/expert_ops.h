// The ops of a mixture of experts (graph/ops.h). CPU kernels copy and multiply rows without
// intermediate tensors; other devices and types use ATen ops.
#pragma once

#include "exec/ops/op.h"

namespace perigee::exec {

// Returns the op's kernel, or nothing for other ops. Its allocations do not depend on values.
Kernel expert_op(const Op& op);

// Returns whether the op is one of them and its kernel on a GPU reads values on the host.
bool expert_op_reads_on_host(const Op& op);

}  // namespace perigee::exec
