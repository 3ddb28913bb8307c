// The choice between the ways to multiply matrices on a CPU (exec/kernels/product.h), by measured times.
#pragma once

#include <map>
#include <string>

#include "compile/compile.h"
#include "cost/op_time.h"

namespace perigee::train {

// By plan::product_name, as plan::Plan::products.
using ProductWays = std::map<std::string, std::string>;

// Returns the products of the programs that were measured to take less time, by at least a tenth, in
// the way that is not the usual one. `times`: of the CPU that the programs run on.
ProductWays faster_ways(const compile::Programs& programs, cost::Measurements& times);

// Returns the products that have two ways, with the one that is not the usual one. Without `all`: those
// whose time is not known in both ways.
ProductWays ways_to_measure(const compile::Programs& programs, cost::Measurements& times, bool all);

}  // namespace perigee::train
