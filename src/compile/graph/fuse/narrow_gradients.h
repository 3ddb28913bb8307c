// Gradients that the step reads in the low precision of the product that makes them.
#pragma once

#include "compile/compile.h"
#include "compile/rank.h"
#include "plan/plan.h"

namespace perigee::compile {

// Removes the cast to float32 of each gradient that nothing but the optimizer's step and the norm
// read, which cast as they read: no number changes. Gradients that are sums, over summands,
// microbatches or ranks, keep the cast, as do those of units (plan::Unit), of optimizers that update
// whole parameters, and of steps that scale gradients in place.
void narrow_gradients(Local& local, const plan::Plan& plan, const StepSpec& spec);

}  // namespace perigee::compile
