// Variable elimination for assign models of small width without a memory limit (bucket elimination,
// Dechter 1999). Exact, without search.
#pragma once

#include <optional>
#include <vector>

#include "solve/assign/model.h"

namespace perigee::solve {

struct Eliminated {
  std::optional<std::vector<int>> best;  // option position per variable
  double lower_bound = 0;                // in time quanta; infinity: every choice is forbidden
  // `best` is optimal, or every choice is forbidden. false: the intermediate tables would have too
  // many entries; `best` and the bound are those of tighten.h, if it found a solution.
  bool finished = false;
};

// Returns the best solution, ignoring memory. `most_work`: limit on the entries of all intermediate
// tables, and of those that bounds read.
Eliminated eliminate(const AssignModel& model, double most_work);

}  // namespace perigee::solve
