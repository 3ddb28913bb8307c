// The exact solvers. Every answer carries a lower bound that is valid whether or not the search
// finished.
//
//   auto problem = solve::parse_problem(text);
//   auto result = solve::solve(problem, {.solver = "auto", .time_limit = 10});
//   std::cout << (json ? solve::to_json(result) : solve::to_text(result, problem));
//   return result.verdict == solve::Verdict::infeasible ? 3 : 0;
#pragma once

#include <limits>
#include <string>

#include "solve/problem.h"

namespace perigee::solve {

struct Options {
  // "labels": label dynamic programming under Lagrangian bounds. "ilp": integer programming by CBC.
  // "auto": labels, and ilp only where labels could not close the gap within its share of the time
  // limit.
  std::string solver = "auto";
  double time_limit =
      std::numeric_limits<double>::infinity();  // seconds; then the best found, with its bound
  // Assign problems by labels: what is not better than the best found by more than this share of
  // its time is not looked for.
  double gap = 0;
};

// Returns the best solution: `optimal` when lower_bound equals time to 1e-9 relative, `feasible`
// when the time limit came first, `infeasible` with the reason. Throws Error: invalid for a broken
// problem, an unknown solver or a time limit that is not positive; failed when the time limit
// passed before any solution was found.
Result solve(const Problem& problem, const Options& options = {});

// The same of one problem among many: looks for no reason where there is no solution, and has the
// verdict `unknown`, with the lower bound, where the time limit passed before any was found.
Result solve_in_time(const Problem& problem, const Options& options);

}  // namespace perigee::solve
