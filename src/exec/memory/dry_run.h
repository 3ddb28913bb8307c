// Dry runs: records the allocations of an op by running it on operands whose pages are
// not allocated.
#pragma once

#include <optional>

#include "compile/trace.h"

namespace perigee::exec {

// Runs the op on the CPU, on this thread, on operands of zeros, and returns its allocations and the
// strides of its results. Returns nothing where a trace cannot describe them: a result inside an
// allocation, but not at its start. Throws Error naming the op when it fails.
std::optional<compile::OpTrace> record_trace(const compile::OpInstance& instance);

}  // namespace perigee::exec
