// Feasible choices from the relaxation's infeasible and slow ones: cheap, and a good one makes
// every bound prune more.
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <vector>

#include "solve/assign_model.h"
#include "solve/relaxation.h"

namespace perigee::solve {

// Takes every pair of the newest solutions of the pool apart at every step of `order` and joins the
// front of one with the back of the other; what is faster than `best_time()` and may be within
// capacity goes to `visit`, which may lower that time.
void cross(const Model& model, const std::vector<int>& order, const ThresholdRange& range,
           const Pool& pool, const std::function<int64_t()>& best_time,
           const std::function<void(std::span<const int>)>& visit);

// Changes one variable at a time for as long as that makes an allowed solution faster and keeps it
// allowed.
void descend(const Model& model, std::vector<int>& solution);

// Changes one variable at a time for as long as that lessens the forbidden pairs, then the memory
// above capacity. Returns whether the solution is allowed then; false past the deadline.
bool repair(const Model& model, std::vector<int>& solution,
            std::chrono::steady_clock::time_point deadline);

}  // namespace perigee::solve
