// Sums the costs of a folded model's compiled program over its prologue, one block,
// and its epilogue.
#pragma once

#include "compile/program.h"
#include "plan/plan.h"
#include "search/layers/fold.h"
#include "search/layers/layers.h"
#include "simulate/op_cost.h"

namespace perigee::search {

struct AccountOptions {
  bool trains = true;  // there are gradients
  int64_t rank = 0;    // whose device runs the ops
};

// Returns the sums of one rank's program, compiled for `plan`, without the exchange of data ranks
// and the reduction of gradients: the program has fewer ranks than the plan that is priced.
Layers account(const compile::Program& program, const plan::Plan& plan, const Folded& folded,
               simulate::OpCosts& costs, const AccountOptions& options);

}  // namespace perigee::search
