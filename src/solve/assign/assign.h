// The default exact solver of assign problems: branch over transient thresholds, Lagrangian bounds,
// label search at the leaves.
#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "solve/labels/search.h"
#include "solve/problem.h"

namespace perigee::solve {

struct AssignOutcome {
  std::optional<std::vector<int>> choice;  // best found, option per op
  double lower_bound = 0;                  // no choice is faster; infinity where none exists
  bool finished = true;                    // false: stopped by the deadline or the label limit
};

struct AssignOptions {
  Deadline deadline = Deadline::max();
  double gap = 0;    // relative: improvements of the time up to this share are not searched for
  bool any = false;  // ignore times: any choice within the limits is a solution
  // Table entries to read for a problem without a memory limit, before the best solution found is
  // returned; infinity: the search goes on until the deadline.
  double most_work = std::numeric_limits<double>::infinity();
};

AssignOutcome assign_by_labels(const AssignProblem& problem, const AssignOptions& options);

}  // namespace perigee::solve
