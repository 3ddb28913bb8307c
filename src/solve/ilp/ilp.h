// Solves both kinds of problems as integer programs with CBC: slower than labels, and independent
// of it.
#pragma once

#include <optional>
#include <vector>

#include "solve/problem.h"

namespace perigee::solve {

struct IlpOutcome {
  std::optional<std::vector<int>> choice;  // as Result::choice, allowed by evaluate()
  double lower_bound = 0;                  // CBC's; infinity where no solution exists
  bool finished = false;                   // solved or ruled out, to CBC's tolerance
};

// Requires a problem that check_problem accepts. CBC's own tolerances are about 1e-7: if evaluate()
// refuses an answer for that reason, the answer is forbidden and the program is solved once more.
// The bound of a finished answer is its re-evaluated time.
IlpOutcome solve_ilp(const AssignProblem& problem, double seconds);
IlpOutcome solve_ilp(const StagesProblem& problem, double seconds);

}  // namespace perigee::solve
