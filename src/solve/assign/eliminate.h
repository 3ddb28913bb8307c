// Variable elimination for assign models of small width without a memory limit (bucket elimination,
// Dechter 1999). Exact, without search.
#pragma once

#include <optional>
#include <vector>

#include "solve/assign/model.h"

namespace perigee::solve {

// Returns the best solution (option position per variable), ignoring memory; nothing if every
// choice is forbidden, or if the intermediate tables would have more than `most_work` entries
// in total.
std::optional<std::vector<int>> eliminate(const AssignModel& model, double most_work);

}  // namespace perigee::solve
