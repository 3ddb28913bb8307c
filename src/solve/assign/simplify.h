// Simplifies an assign model before the search: dominated options and interchangeable variables.
#pragma once

#include <vector>

#include "solve/assign/model.h"

namespace perigee::solve {

// Returns the model without dominated options: another option of the variable is no worse in time,
// for every choice of the neighbours, and in every memory term.
AssignModel without_dominated(const AssignModel& model);

// Breaks the symmetry of interchangeable variables (same options and rows, no pairs): adds pairs to
// the model that allow their options in one order only. Returns whether there are such variables.
// `cost` [variable][option]: options of large cost come first, so that the last variables have
// common options, for which the bounds are exact.
bool break_symmetry(AssignModel& model, const std::vector<std::vector<double>>& cost);

}  // namespace perigee::solve
