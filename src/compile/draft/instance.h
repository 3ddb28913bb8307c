// Allocations of instructions that passes insert.
#pragma once

#include "compile/draft/draft.h"
#include "compile/trace.h"

namespace perigee::compile {

// Gives an op on draft values the allocations of its trace. Returns false, and leaves the
// instruction as it is, where its result would not be one contiguous allocation of its own.
bool set_allocations(Draft& draft, DraftInstruction& part, TraceSource& traces);

}  // namespace perigee::compile
