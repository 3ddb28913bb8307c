// Exact search by labels: partial choices along the sweep's order, compared on their full state.
#pragma once

#include <chrono>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "solve/assign/model.h"
#include "solve/assign/relaxation.h"
#include "solve/labels/sweep.h"

namespace perigee::solve {

using Deadline = std::chrono::steady_clock::time_point;

struct LabelOptions {
  double target = 0;       // only choices with a bound up to this, in time quanta, are of interest
  size_t most_labels = 0;  // kept per step; beyond it the most promising stay
  Deadline deadline;
};

struct LabelOutcome {
  // Least time of the choices that were found and not accepted, in quanta; infinity without any.
  double relaxed = std::numeric_limits<double>::infinity();
  // Lower bound on the time of choices whose labels were dropped by the label limit.
  double dropped = std::numeric_limits<double>::infinity();
  bool timed_out = false;  // then only the relaxation's bound holds
};

// Searches all choices whose peak is within capacity as the range charges transients; that is
// exact for a single threshold. The sweep holds the tables of the last backward() for `charged` at
// the range, `constant` as charged() returned it. Choices found go to `accept`, fastest first,
// until it returns true. A label dominates another of the same frontier options only if it is no
// worse in time and in every memory term, maxima included; terms that can no longer bind get equal
// values first.
LabelOutcome search_labels(const AssignModel& model, const Sweep& sweep,
                           const ThresholdRange& range, double constant,
                           const LabelOptions& options,
                           const std::function<bool(std::span<const int>)>& accept);

}  // namespace perigee::solve
