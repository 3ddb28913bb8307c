// What a compiled program of a folded model takes, summed over what stands before its blocks, one
// of them, and what stands behind.
#pragma once

#include "compile/program.h"
#include "plan/plan.h"
#include "search/fold.h"
#include "search/layers.h"
#include "search/op_cost.h"

namespace perigee::search {

struct AccountOptions {
  bool trains = true;  // there are gradients
  int64_t rank = 0;    // whose device runs the ops
};

// Returns the sums of one rank's program, made by `plan`. What data
// ranks exchange, and the reduction of gradients, are left out: the program's ranks are not as many
// as those of a plan.
Layers account(const compile::Program& program, const plan::Plan& plan, const Folded& folded,
               OpCosts& costs, const AccountOptions& options);

}  // namespace perigee::search
