// Exit statuses of ranks. Those of train.rerun are Megatron-Core's, with which runtime/runs.md
// compares them.
#pragma once

#include "base/error.h"

namespace perigee::train {

// A bad step was good when it ran a second time: a transient fault. The job may be resumed.
inline constexpr Status kTransientFault{16};

// A bad step was bad both times: its data, the model, or a device that always fails.
inline constexpr Status kPersistentFault{17};

// A rank stopped on request, after its checkpoint where the job asks for one. The command ends with
// status 1.
inline constexpr Status kStopped{18};

}  // namespace perigee::train
