#include "solve/solve.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/deadline.h"
#include "base/fail.h"
#include "solve/assign/assign.h"
#include "solve/evaluate.h"
#include "solve/ilp/ilp.h"
#include "solve/stages_search.h"
#include "solve/why_not.h"

namespace perigee::solve {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLabelsShare = 0.5;   // share of the time limit for labels, before ilp starts
constexpr double kExplainSeconds = 2;  // time limit of the explanation of an infeasible problem

struct Found {
  std::optional<std::vector<int>> choice;
  double lower_bound = 0;
  bool finished = false;
};

Found by_labels(const AssignProblem& problem, Clock::time_point deadline, const Options& options) {
  auto outcome = assign_by_labels(
      problem, {.deadline = deadline, .gap = options.gap, .most_work = options.most_work});
  Found found{std::move(outcome.choice), outcome.lower_bound, outcome.finished};
  if (options.start.empty()) return found;
  const auto start = evaluate(problem, options.start);
  const bool faster = !found.choice || start.time < evaluate(problem, *found.choice).time;
  if (start.allowed && faster) found.choice = options.start;
  return found;
}

Found by_labels(const StagesProblem& problem, Clock::time_point deadline, const Options&) {
  auto outcome = stages_by_search(problem, deadline);
  return {std::move(outcome.choice), outcome.lower_bound, outcome.finished};
}

template <class Kind>
Found by_ilp(const Kind& problem, Clock::time_point deadline) {
  const double seconds = std::chrono::duration<double>(deadline - Clock::now()).count();
  auto outcome = solve_ilp(problem, std::max(seconds, 0.01));
  return {std::move(outcome.choice), outcome.lower_bound, outcome.finished};
}

template <class Kind>
Result answer(const Kind& problem, const Options& options, Clock::time_point start) {
  const auto deadline = deadline_after(options.time_limit, start);
  Result result;
  Found found;
  const bool both = options.solver == "auto";
  result.solver = options.solver == "ilp" ? "ilp" : "labels";
  if (options.solver == "ilp") {
    found = by_ilp(problem, deadline);
  } else {
    found = by_labels(problem,
                      both ? deadline_after(options.time_limit * kLabelsShare, start) : deadline,
                      options);
  }
  if (both && !found.finished && Clock::now() < deadline) {
    Found second = by_ilp(problem, deadline);
    const double bound = std::max(found.lower_bound, second.lower_bound);
    auto time = [&](const Found& each) {
      return each.choice ? evaluate(problem, *each.choice).time
                         : std::numeric_limits<double>::infinity();
    };
    if (second.finished || time(second) < time(found)) {
      result.solver = "ilp";
      found = std::move(second);
    }
    found.lower_bound = bound;
  }
  if (!found.choice) {
    result.verdict = found.finished ? Verdict::infeasible : Verdict::unknown;
    result.lower_bound = std::max(0.0, found.lower_bound);
  } else {
    const auto evaluation = evaluate(problem, *found.choice);
    if (!evaluation.allowed)
      fail_run("solve", "the answer of {} must be allowed, but {}", result.solver, evaluation.why);
    result.time = evaluation.time;
    result.memory = evaluation.memory;
    // Times are >= 0; rounding of sums of prices may put a bound below.
    result.lower_bound = std::clamp(found.lower_bound, 0.0, evaluation.time);
    result.choice = std::move(*found.choice);
    const bool tight = evaluation.time - result.lower_bound <= kTolerance * evaluation.time;
    result.verdict = tight ? Verdict::optimal : Verdict::feasible;
  }
  return result;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void check(const Problem& problem, const Options& options) {
  const std::vector<std::string> solvers = {"auto", "labels", "ilp"};
  if (std::find(solvers.begin(), solvers.end(), options.solver) == solvers.end()) {
    fail("solve", "the solver must be auto, labels or ilp, but got \"{}\"{}", options.solver,
         did_you_mean(options.solver, solvers));
  }
  if (!(options.time_limit > 0))
    fail("solve", "the time limit must be positive, but got {} s", options.time_limit);
  check_problem(problem);
}

}  // namespace

Result solve(const Problem& problem, const Options& options) {
  check(problem, options);
  const auto start = Clock::now();
  const auto solve_kind = [&](const auto& kind) {
    auto result = answer(kind, options, start);
    if (result.verdict == Verdict::unknown) {
      fail_run("solve",
               "the time limit of {} s passed before a solution was found or ruled out; no "
               "solution is faster than {}",
               options.time_limit, result.lower_bound);
    }
    if (result.verdict == Verdict::infeasible) {
      const auto end = std::min(deadline_after(options.time_limit, start),
                                deadline_after(kExplainSeconds));
      result.reason = why_infeasible(kind, std::max(Clock::now(), end));
      result.lower_bound = 0;
    }
    result.seconds = seconds_since(start);
    return result;
  };
  return std::visit(solve_kind, problem);
}

Result solve_in_time(const Problem& problem, const Options& options) {
  check(problem, options);
  const auto start = Clock::now();
  auto result = std::visit([&](const auto& kind) { return answer(kind, options, start); }, problem);
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace perigee::solve
