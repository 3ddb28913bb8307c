// Heuristics that derive feasible, fast choices from the relaxation's solutions. A faster choice
// lets bounds prune more.
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <vector>

#include "solve/assign/model.h"
#include "solve/assign/relaxation.h"

namespace perigee::solve {

// Crossover of every pair of the newest solutions of the pool: cuts both at every step of `order`
// and joins the first part of one with the second part of the other. Calls `visit`, which may lower
// `best_time()`, with each result that is faster than `best_time()` and may be within capacity.
void cross(const AssignModel& model, const std::vector<int>& order, const ThresholdRange& range,
           const Pool& pool, const std::function<int64_t()>& best_time,
           const std::function<void(std::span<const int>)>& visit);

// Local search: changes one variable at a time while this makes the allowed solution faster and
// keeps it allowed.
void descend(const AssignModel& model, std::vector<int>& solution);

// Local search: changes one variable at a time while this reduces the number of forbidden
// pairs, then the memory above capacity. Returns whether the solution is then allowed; false
// past the deadline.
bool repair(const AssignModel& model, std::vector<int>& solution,
            std::chrono::steady_clock::time_point deadline);

}  // namespace perigee::solve
