// Lower bounds on the time of solutions through each option, for assign models without a memory
// limit, by the dual of the linear relaxation (sequential tree-reweighted message passing,
// Kolmogorov 2006, as diffusion between variables and pairs, Werner 2007).
#pragma once

#include <vector>

#include "solve/assign/model.h"

namespace perigee::solve {

struct Tightened {
  std::vector<int> best;  // option position per variable; empty: no solution was found
  bool optimal = false;   // no solution is faster than `best`
  double bound = 0;       // no solution is faster, in time quanta
  // Per variable, ascending: the positions of options that a solution no slower than `best`
  // may use.
  std::vector<std::vector<int>> keep;
};

// Raises the bounds in passes over the model that read about `most_work` table entries in total.
// Ignores memory.
Tightened tighten(const AssignModel& model, double most_work);

}  // namespace perigee::solve
