// Dry runs: records the allocations of an op by running it once on operands without memory.
#pragma once

#include <optional>

#include "compile/trace.h"

namespace perigee::exec {

// Runs the op on the CPU, on this thread, on operands of zeros, and returns what it allocates and
// how its results lie. Returns nothing where that cannot be told in a trace: a result that lies
// inside an allocation, but not at its start. Throws Error naming the op when it fails.
std::optional<compile::OpTrace> record_trace(const compile::OpInstance& instance);

}  // namespace perigee::exec
