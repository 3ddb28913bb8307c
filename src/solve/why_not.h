// Explains why a problem has no solution: the constraint to relax, and the amount.
#pragma once

#include <chrono>
#include <string>

#include "solve/problem.h"

namespace perigee::solve {

// Returns one sentence. Requires that no solution exists. Past the deadline the sentence states a
// bound instead of the exact amount.
std::string why_infeasible(const AssignProblem& problem,
                           std::chrono::steady_clock::time_point deadline);
std::string why_infeasible(const StagesProblem& problem,
                           std::chrono::steady_clock::time_point deadline);

}  // namespace perigee::solve
