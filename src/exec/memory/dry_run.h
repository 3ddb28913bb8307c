// Dry runs: records the allocations of an op by running it on operands whose pages are
// not allocated.
#pragma once

#include <optional>

#include "compile/trace.h"
#include "exec/memory/allocator.h"

namespace perigee::exec {

// Runs the op on the CPU, on this thread, on operands of zeros, and returns its allocations and the
// strides of its results. Returns nothing where a trace cannot describe them: a result inside an
// allocation, but not at its start. Throws Error naming the op when it fails.
std::optional<compile::OpTrace> record_trace(const compile::OpInstance& instance);

// Appends the recorded allocations to a trace, with those that were freed before each.
void add_allocations(compile::OpTrace& trace,
                     const std::vector<RecordedAllocations::Entry>& entries);

// Returns the index of the recorded allocation that is in use at the address, or -1.
int32_t allocation_at(const void* address, const std::vector<RecordedAllocations::Entry>& entries);

}  // namespace perigee::exec
