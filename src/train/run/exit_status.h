// Exit statuses of train.rerun, with Megatron-Core's numbers (runtime/runs.md compares them).
#pragma once

#include "base/error.h"

namespace perigee::train {

// A bad step was good when it ran a second time: a transient fault. The job may be resumed.
inline constexpr Status kTransientFault{16};

// A bad step was bad both times: its data, the model, or a device that always fails.
inline constexpr Status kPersistentFault{17};

}  // namespace perigee::train
