// Perigee's own ops (graph/ops.h) in their simplest form, out of ATen ops.
#pragma once

#include "exec/op.h"

namespace perigee::exec {

// Returns the kernel of a `perigee::` op that needs no mesh, or nothing for other ops.
Kernel reference_op(const Op& op);

}  // namespace perigee::exec
