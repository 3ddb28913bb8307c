// Sums of products, computed by the products.
#pragma once

#include "compile/draft/draft.h"
#include "compile/trace.h"

namespace perigee::compile {

// Replaces a matrix product, and the addition of its result to an earlier value that nothing else reads,
// by a product that adds to that value (perigee::addmm_). An example are the gradients of the input of
// several linear layers: each but the first adds to the sum of those before it. Products of 16 bits whose
// sum is float32 are not rounded: the first writes float32 (perigee::mm_). Numbers change by rounding only.
void sum_products(Draft& draft, TraceSource& traces);

}  // namespace perigee::compile
