// What can be said about an assign model before any search: options that another always beats,
// variables that may swap.
#pragma once

#include <vector>

#include "solve/assign_model.h"

namespace perigee::solve {

// Returns the model without options that another of the same variable matches or beats in time,
// whatever the neighbours take, and in every memory term.
Model without_beaten(const Model& model);

// Returns the model with the options of interchangeable variables (same options and rows, no pairs)
// in one order, by pairs that forbid the others; nothing where there are none. Options with a large
// `cost` come first: what is left to the end is then the common ones, whose totals the bounds know
// exactly. [variable][option]
bool order_twins(Model& model, const std::vector<std::vector<double>>& cost);

}  // namespace perigee::solve
