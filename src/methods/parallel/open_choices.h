// The choices of auto_sharding that the other methods of a strategy leave open.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"

namespace perigee::methods {

// Returns the choices besides shardings: storage, recompute and offload.
const std::vector<std::string>& solver_choices();

// Returns whether the plan's methods have made the choice: parameters are stored in parts; blocks
// are recomputed or activations offloaded, which exclude each other.
bool is_chosen(const plan::Plan& plan, const std::string& choice);

}  // namespace perigee::methods
