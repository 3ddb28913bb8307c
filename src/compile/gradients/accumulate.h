// Sums of gradients without a pass of their own.
#pragma once

#include "compile/draft/draft.h"
#include "compile/trace.h"

namespace perigee::compile {

// Replaces matrix products whose result is only added to a gradient by products that add to it
// (perigee::addmm_), without a separate result and addition.
void accumulate_products(Draft& draft, TraceSource& traces);

// Adds low-precision gradients to a wide sum directly where they are cast only to be added.
void accumulate_casts(Draft& draft);

}  // namespace perigee::compile
