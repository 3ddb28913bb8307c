// The default exact solver of assign problems: branch over transient thresholds, Lagrangian bounds,
// label search at the leaves.
#pragma once

#include <optional>
#include <vector>

#include "solve/label_search.h"
#include "solve/problem.h"

namespace perigee::solve {

struct AssignOutcome {
  std::optional<std::vector<int>> choice;  // best found, option per op
  double lower_bound = 0;                  // no choice is faster; infinity where none exists
  bool finished = true;                    // false: the deadline or the label limit came first
};

struct AssignOptions {
  Deadline deadline = Deadline::max();
  double gap = 0;    // of the time: improvements that are no larger are not looked for
  bool any = false;  // any choice within the limits will do: times are ignored
};

AssignOutcome assign_by_labels(const AssignProblem& problem, const AssignOptions& options);

}  // namespace perigee::solve
