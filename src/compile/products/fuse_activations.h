// GELU, and its gradient, computed by the matrix products before them.
#pragma once

#include "compile/draft/draft.h"
#include "compile/trace.h"

namespace perigee::compile {

// Lets products of bfloat16 or float16 matrices compute
// - the tanh form of GELU of their result (perigee::mm_gelu, from aten::mm or aten::addmm),
// - its gradient where their result is GELU's upstream gradient and nothing else reads it, with the
//   sum of its rows (perigee::mm_gelu_backward, from aten::mm),
// in the product's place. Only where the product's rows, of factors and result, are whole pieces of
// 16 bytes. Numbers change by rounding only.
void fuse_activations(Draft& draft, TraceSource& traces);

}  // namespace perigee::compile
