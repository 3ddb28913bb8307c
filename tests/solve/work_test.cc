// Answers within an amount of work, and from a known choice.
#include <catch2/catch.hpp>
#include <limits>

#include "base/error.h"
#include "solve/evaluate.h"
#include "solve/solve.h"
#include "tests/solve/support.h"

using namespace perigee::solve;
using namespace perigee::solve::testing;

TEST_CASE("past its work, the answer is the best choice so far with a bound that holds") {
  int proven = 0, feasible = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Random random(seed);
    const auto problem = random_assign(
        random, {.ops = 14, .options = 6, .edge_share = 0.6, .chain = false, .memory = false});
    const auto optimum = solve(problem, {.solver = "labels"});
    REQUIRE(optimum.verdict == Verdict::optimal);
    const auto result = solve(problem, {.solver = "labels", .most_work = 3000});
    INFO("seed " << seed);
    CHECK(evaluate(problem, result.choice).time == Approx(result.time));
    CHECK(result.time >= optimum.time * (1 - 1e-9));
    CHECK(result.lower_bound <= optimum.time * (1 + 1e-9));
    CHECK(result.lower_bound > 0.5 * optimum.time);
    // No clock decides.
    CHECK(solve(problem, {.solver = "labels", .most_work = 3000}).choice == result.choice);
    (result.verdict == Verdict::optimal ? proven : feasible) += 1;
  }
  CHECK(feasible > 0);
  CHECK(proven + feasible == 8);
}

TEST_CASE("more work than tables need gives the optimum") {
  Random random(3);
  const auto problem = random_assign(
      random, {.ops = 8, .options = 4, .edge_share = 0.5, .chain = false, .memory = false});
  const auto result = solve(problem, {.solver = "labels", .most_work = 1e8});
  CHECK(first_error(problem, result, exhaustive(problem)) == "");
  CHECK(result.verdict == Verdict::optimal);
}

TEST_CASE("a known choice is returned where the search finds none in time") {
  // A graph of 600 nodes to colour with three colours, of which one colouring is known.
  Random random(5);
  constexpr int kNodes = 600, kColours = 3;
  AssignProblem problem;
  for (int v = 0; v < kNodes; ++v) {
    problem.ops.push_back({.name = {}, .options = {{.time = 1}, {.time = 2}, {.time = 3}}});
  }
  std::vector<int> known;
  for (int v = 0; v < kNodes; ++v) known.push_back(v % kColours);
  std::uniform_int_distribution<int> node(0, kNodes - 1);
  std::vector<double> differ(kColours * kColours, 0);
  for (int c = 0; c < kColours; ++c) {
    differ[c * kColours + c] = std::numeric_limits<double>::infinity();
  }
  while (problem.edges.size() < kNodes * 47 / 20) {
    const int from = node(random), to = node(random);
    if (known[from] != known[to]) problem.edges.push_back({from, to, differ});
  }
  Options options{.solver = "labels", .time_limit = 1e-6, .most_work = 1};
  CHECK_THROWS_AS(solve(problem, options), perigee::Error);
  options.start = known;
  const auto result = solve(problem, options);
  CHECK(result.verdict == Verdict::feasible);
  CHECK(result.choice == known);
  // The start is not used where it breaks a constraint.
  options.start[problem.edges[0].from] = known[problem.edges[0].to];
  CHECK_THROWS_AS(solve(problem, options), perigee::Error);
}
