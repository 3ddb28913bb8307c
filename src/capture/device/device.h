// The capture device: LibTorch's PrivateUse1, with hooks, guard, allocator and one kernel
// for all ops.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace perigee::tracing {

// Registers the device in this process, once. Costs some milliseconds and cannot be undone: call it
// only in a process that captures.
void register_device();

// Returns the allocator of pointers without memory.
c10::Allocator* no_memory_allocator();

// The device's kernel of every op (recorder.cc).
void record_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace perigee::tracing
