// Assign models without a memory limit: what every option costs at least with all else, by the dual
// of the linear relaxation (tree-reweighted messages in sequence, Kolmogorov 2006, as diffusion
// between variables and pairs, Werner 2007).
#pragma once

#include <vector>

#include "solve/assign_model.h"

namespace perigee::solve {

struct Tightened {
  std::vector<int> best;               // option position per variable; empty: none was met
  bool optimal = false;                // no solution is faster than `best`
  std::vector<std::vector<int>> keep;  // per variable: positions that a solution may have,
                                       // ascending, that is no slower than `best`
};

// Raises the bound for as long as that pays, looking at about `most_work` entries of tables. The
// memory of the model does not count.
Tightened tighten(const Model& model, double most_work);

}  // namespace perigee::solve
