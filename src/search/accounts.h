// What a compiled program of a folded model takes, summed over what stands before its blocks, one
// of them, and what stands behind.
#pragma once

#include "compile/program.h"
#include "plan/plan.h"
#include "search/fold.h"
#include "search/layers.h"
#include "search/op_cost.h"

namespace perigee::search {

// Returns the sums of one rank's program, made by `plan`. `trains`: there are gradients. What data
// ranks exchange, and the reduction of gradients, are left out: the program's ranks are not as many
// as those of a plan.
Layers account(const compile::Program& program, const plan::Plan& plan, const Folded& folded,
               OpCosts& costs, bool trains);

}  // namespace perigee::search
