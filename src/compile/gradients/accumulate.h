// Sums of gradients without a pass of their own.
#pragma once

#include "compile/draft/draft.h"
#include "compile/trace.h"

namespace perigee::compile {

// Adds low-precision gradients to a wide sum directly where they are cast only to be added.
void accumulate_casts(Draft& draft);

// Replaces ops whose result is only added to a gradient by ops that add to it, without a separate
// result and addition: gradients of embeddings by perigee::embedding_backward_, which touches the
// named rows alone, and with `products` matrix products by perigee::addmm_. A product of 16-bit
// matrices for a float32 gradient is added up in float32; where its first microbatch sets the
// gradient, by a product that writes it (perigee::mm_). Runs after accumulate_casts.
void accumulate_in_place(Draft& draft, bool products, TraceSource& traces);

}  // namespace perigee::compile
