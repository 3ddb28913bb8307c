// The exact solvers. Every answer carries a lower bound that is valid whether or not
// the search finished.
//
//   auto problem = solve::parse_problem(text);
//   auto result = solve::solve(problem, {.solver = "auto", .time_limit = 10});
//   std::cout << (json ? solve::to_json(result) : solve::to_text(result, problem));
//   return result.verdict == solve::Verdict::infeasible ? 3 : 0;
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "solve/problem.h"

namespace perigee::solve {

struct Options {
  // "labels": label dynamic programming under Lagrangian bounds. "ilp": integer programming by
  // CBC. "auto": labels, and ilp only where labels could not close the gap within its share of the
  // time limit.
  std::string solver = "auto";
  // In seconds; when it has passed, the best solution found is returned with its bound.
  double time_limit = std::numeric_limits<double>::infinity();
  // Relative gap of assign problems solved by labels: the search stops when no solution can be
  // faster by more than this share of the best time.
  double gap = 0;
  // Table entries that labels read for an assign problem without a memory limit: past it, the best
  // solution found is returned with its bound, whatever the time. Infinity: the time limit counts.
  double most_work = std::numeric_limits<double>::infinity();
  // Assign problems: a choice that is known to be allowed, for labels. The answer is no slower.
  std::vector<int> start = {};
};

// Returns the best solution: `optimal` when lower_bound equals time to 1e-9 relative, `feasible`
// when the time limit came first, `infeasible` with the reason. Throws Error: invalid for a broken
// problem, an unknown solver or a time limit that is not positive; failed when the time limit
// passed before any solution was found.
Result solve(const Problem& problem, const Options& options = {});

// Like solve(), for one problem among many: gives no reason for an infeasible problem, and returns
// the verdict `unknown` with the lower bound, instead of throwing, if the time limit passes before
// any solution is found.
Result solve_in_time(const Problem& problem, const Options& options);

}  // namespace perigee::solve
