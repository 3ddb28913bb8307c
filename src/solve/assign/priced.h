// Lagrangian bound of assign models of small width under a memory limit: memory has a price instead
// of a limit, and variable elimination (eliminate.h) solves the rest. The bound is best at the
// price at which a choice within the limit and one beyond it have equal cost (Everett 1963).
#pragma once

#include <optional>
#include <vector>

#include "solve/assign/model.h"
#include "solve/labels/search.h"

namespace perigee::solve {

struct Priced {
  std::optional<std::vector<int>> best;  // within the limit: option position per variable
  double lower_bound = 0;                // no choice is faster, in time quanta
};

// Returns the fastest allowed choice that was found and a lower bound; the bound is 0 if the
// tables of an elimination would have more than `most_work` entries in total. Past the deadline no
// further price is tried. If memory does not bind, the choice attains the bound. The price covers
// resident and saved memory, not transients and groups: the bound is valid for problems with
// these, but not tight.
Priced price_memory(const AssignModel& model, double most_work, Deadline deadline);

}  // namespace perigee::solve
