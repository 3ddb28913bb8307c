// Lower bounds of the solutions with each option, against exhaustive search on small problems and
// against the solvers without bounds on large ones.
#include "solve/assign/tighten.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "solve/assign/eliminate.h"
#include "tests/solve/support.h"

using namespace perigee::solve;
using namespace perigee::solve::testing;

namespace {

// A torus of `side` x `side` ops: every elimination order joins many variables.
AssignProblem grid(Random& random, int side, int options, double forbidden, bool whole) {
  AssignProblem problem;
  std::uniform_real_distribution<double> share(0, 1);
  const auto draw = [&](double most) {
    const double time = most * share(random);
    return whole ? std::floor(time) : time;
  };
  for (int i = 0; i < side * side; ++i) {
    auto& op = problem.ops.emplace_back();
    for (int o = 0; o < options; ++o) op.options.push_back({.time = draw(10)});
  }
  const auto join = [&](int from, int to) {
    AssignEdge edge{.from = from, .to = to, .time = {}};
    for (int k = 0; k < options * options; ++k) {
      const bool never = share(random) < forbidden && k % (options + 1) != 0;
      edge.time.push_back(never ? std::numeric_limits<double>::infinity() : draw(10));
    }
    problem.edges.push_back(std::move(edge));
  };
  for (int i = 0; i < side * side; ++i) {
    if (i % side + 1 < side) join(i, i + 1);
    if (i + side < side * side) join(i, i + side);
  }
  return problem;
}

}  // namespace

TEST_CASE("no better solution has a dropped option, and a solution marked optimal is optimal") {
  constexpr uint64_t kSeed = 7;
  Random random(kSeed);
  int dropped = 0, proven = 0;
  for (int i = 0; i < 400; ++i) {
    INFO("seed " << kSeed << ", problem " << i);
    const auto problem = grid(random, 3, 2 + i % 2, i % 4 < 2 ? 0 : 0.3, i % 3 == 0);
    const auto model = make_model(problem);
    const auto best = eliminate(model, 1e9).best;
    REQUIRE(best);
    const auto least = time_of(model, *best);
    CHECK(static_cast<double>(least) * model.time_quantum ==
          Approx(*exhaustive(problem)).epsilon(1e-9));
    const auto found = tighten(model, 1e6);
    REQUIRE(!found.best.empty());
    CHECK(time_of(model, found.best) >= least);
    if (found.optimal) CHECK(time_of(model, found.best) == least);
    proven += found.optimal;
    for (size_t v = 0; v < found.keep.size(); ++v) {
      CHECK(std::ranges::count(found.keep[v], (*best)[v]) == 1);
      dropped += static_cast<int>(model.variables[v].size() - found.keep[v].size());
    }
  }
  CHECK(dropped > 1000);
  CHECK(proven > 100);
}

TEST_CASE("elimination with bounds gives the result of row-by-row elimination") {
  Random random(11);
  for (int i = 0; i < 4; ++i) {
    const auto model = make_model(grid(random, 5, 10, 0.2, i % 2 == 0));
    const auto best = eliminate(model, 1e9).best;
    REQUIRE(best);
    // The reference eliminates the grid's variables in row order.
    const int side = 5, size = 10;
    std::vector<int64_t> rows(1, 0);
    std::vector<int> free;
    for (int v = 0; v < side * side; ++v) {
      // `rows`: least time by the options of the last `side` variables; the last varies fastest.
      const bool full = static_cast<int>(free.size()) == side;
      const size_t kept = full ? rows.size() / size : rows.size();
      std::vector<int64_t> next(kept * size, kForbidden);
      std::vector<const Pair*> pairs;
      for (const auto& pair : model.pairs) {
        if (pair.v == v) pairs.push_back(&pair);
      }
      for (size_t state = 0; state < rows.size(); ++state) {
        for (int o = 0; o < size; ++o) {
          int64_t time = rows[state] + model.variables[v].uses[o].time;
          for (const auto* pair : pairs) {
            size_t digit = state;
            for (int k = 1; k < v - pair->u; ++k) digit /= size;
            time = std::min(time + pair->time[(digit % size) * size + o], kForbidden);
          }
          const size_t to = (full ? state % kept : state) * size + o;
          next[to] = std::min(next[to], time);
        }
      }
      rows = std::move(next);
      if (!full) free.push_back(v);
    }
    CHECK(time_of(model, *best) == *std::min_element(rows.begin(), rows.end()));
  }
}
