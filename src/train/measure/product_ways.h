// The choice between the ways to multiply matrices on a CPU (exec/kernels/product/product.h), by measured times.
#pragma once

#include <map>
#include <string>

#include "compile/compile.h"
#include "cost/op_time.h"
#include "plan/plan.h"

namespace perigee::train {

// Sets Plan::products to those products of the plan's programs that were measured to take less time, by
// at least a tenth, in the way that is not the usual one. Returns whether they were others before.
// `times`: of the CPU that the programs run on.
bool take_faster_ways(plan::Plan& plan, const compile::Programs& programs,
                      cost::Measurements& times);

// Returns the products that have two ways, with the one that is not the usual one, as Plan::products.
// Without `all`: those whose time is not known in both ways.
std::map<std::string, std::string> ways_to_measure(const compile::Programs& programs,
                                                   cost::Measurements& times, bool all);

}  // namespace perigee::train
