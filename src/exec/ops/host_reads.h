// The ops that read values of tensors on the host while their kernel is called. On a GPU the host
// waits for these values, so such an op can be no part of a recorded step (exec/recorder.h).
#pragma once

#include "exec/ops/op.h"

namespace perigee::exec {

// Returns whether the op's kernel on a GPU reads values on the host. An op of LibTorch that is not
// known to do so and does is found when it is recorded, as an error of CUDA.
bool reads_on_host(const Op& op);

}  // namespace perigee::exec
