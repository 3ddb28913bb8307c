// Why a problem has no solution: which constraint to relax, and by how much.
#pragma once

#include <chrono>
#include <string>

#include "solve/problem.h"

namespace perigee::solve {

// Returns one sentence. Requires that no solution exists; by the deadline it settles for bounds on
// the amount.
std::string why_infeasible(const AssignProblem& problem,
                           std::chrono::steady_clock::time_point deadline);
std::string why_infeasible(const StagesProblem& problem,
                           std::chrono::steady_clock::time_point deadline);

}  // namespace perigee::solve
