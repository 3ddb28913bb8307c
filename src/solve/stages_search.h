// The exact solver of stages problems: branch over the longest stage's time, dynamic programming
// over layers and devices.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "solve/problem.h"

namespace perigee::solve {

struct StagesOutcome {
  std::optional<std::vector<int>> choice;  // candidates in order
  double lower_bound = 0;                  // no sequence is faster; infinity where none exists
  bool finished = true;                    // false: the deadline came first
};

// As in Alpa's inter-op pass, the longest stage is fixed first; unlike there, ranges of its time
// are ruled out at once by the least sum for the range's top and the longest time of its bottom.
StagesOutcome stages_by_search(const StagesProblem& problem,
                               std::chrono::steady_clock::time_point deadline);

}  // namespace perigee::solve
