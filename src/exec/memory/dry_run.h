// Dry runs: records the allocations of an op by running it on operands whose pages are
// not allocated.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <vector>

#include "compile/trace.h"
#include "exec/memory/allocator.h"
#include "exec/ops/op.h"

namespace perigee::exec {

// Returns the op of a dry run, which has the allocations of the instance's op and takes operands of
// zeros: these send all tokens to one expert, so every expert has a slot for each.
Op dry_run_op(const compile::OpInstance& instance);

// Runs the op on the CPU, on this thread, on operands of zeros, and returns its allocations and the
// strides of its results. Returns nothing where a trace cannot describe them: a result inside an
// allocation, but not at its start. Throws Error naming the op when it fails.
std::optional<compile::OpTrace> record_trace(const compile::OpInstance& instance);

// Returns the trace of an op on a device without planned memory (Device::plans_memory) from its
// recorded allocations and its results, which are in use. A result that the executor copies (an
// operand, a part of an allocation, or one with large gaps) has an allocation after the op's own.
compile::OpTrace trace_with_copies(const compile::OpInstance& instance,
                                   std::span<const at::Tensor> results,
                                   const std::vector<RecordedAllocations::Entry>& entries);

}  // namespace perigee::exec
