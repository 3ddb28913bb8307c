// Assign models of small width under a memory limit: memory is given a price, and what is left has
// no limit (eliminate.h). The prices on which a choice within the limit and one beyond it are equal
// give the best bound of this kind (Everett 1963).
#pragma once

#include <optional>
#include <vector>

#include "solve/assign_model.h"
#include "solve/label_search.h"

namespace perigee::solve {

struct Priced {
  std::optional<std::vector<int>> best;  // within the limit: option position per variable
  double lower_bound = 0;                // no choice is faster, in time quanta
};

// Returns the fastest choice that was met and a bound, 0 where an elimination's tables would have
// more than `most_work` entries in all. Past the deadline no further price is tried. Where memory
// does not bind, the choice attains the bound. What is priced is memory while activations are
// saved, but for transients and groups: of a problem that these bind, the bound holds and is not
// the best.
Priced price_memory(const Model& model, double most_work, Deadline deadline);

}  // namespace perigee::solve
