// Bounds of unfinished assignments and sequences against every completion.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <functional>

#include "base/infinity.h"
#include "solve/assign/model.h"
#include "solve/assign/priced.h"
#include "solve/assign/relaxation.h"
#include "solve/evaluate.h"
#include "solve/labels/search.h"
#include "solve/labels/sweep.h"
#include "solve/solve.h"
#include "solve/stages_search.h"
#include "tests/solve/support.h"

using namespace perigee::solve;
using namespace perigee::solve::testing;
using perigee::kInfinity;

namespace {

constexpr uint64_t kSeed = 20241124;
constexpr double kRounding = 1e-9;
constexpr double kWork = 1e9;  // table entries: no pair is left out

// Calls `visit` with every solution (option position per variable).
void each_solution(const AssignModel& model, const std::function<void(std::vector<int>&)>& visit) {
  std::vector<int> solution(model.variables.size());
  for (const auto& variable : model.variables) {
    if (variable.size() == 0) return;
  }
  for (;;) {
    visit(solution);
    size_t v = 0;
    while (v < solution.size() && ++solution[v] == model.variables[v].size()) solution[v++] = 0;
    if (v == solution.size()) return;
  }
}

// The transient that the sum of the largest ones ends with: the threshold at which a range's
// memory is the solution's.
int64_t threshold_of(const AssignModel& model, const std::vector<int>& solution) {
  std::vector<int64_t> transients;
  for (size_t v = 0; v < solution.size(); ++v) {
    const auto& use = model.variables[v].uses[solution[v]];
    transients.insert(transients.end(), use.transients.begin(), use.transients.end());
  }
  std::ranges::sort(transients, std::greater<>());
  const auto last = static_cast<size_t>(model.transient_count);
  return last == 0 || transients.size() < last ? 0 : transients[last - 1];
}

struct Best {
  int64_t time = kForbidden;
  std::vector<int> solution;
};

// Returns the fastest solution within memory.
Best best_of(const AssignModel& model) {
  Best best;
  each_solution(model, [&](std::vector<int>& solution) {
    const auto time = time_of(model, solution);
    if (time >= best.time || (model.limited && memory_of(model, solution) > model.capacity)) return;
    best = {time, solution};
  });
  return best;
}

Prices random_prices(Random& random, const AssignModel& model) {
  const auto price = [&] { return uniform(random, 0, 1) < 0.3 ? 0 : uniform(random, 0, 2); };
  Prices prices{price(), price(), {}};
  for (int r = 0; r < model.groups + model.moments; ++r) prices.rows.push_back(price());
  double groups = 0;
  for (int r = 0; r < model.groups; ++r) groups += prices.rows[r];
  for (int r = 0; r < model.groups && groups > 0; ++r) {
    prices.rows[r] *= std::min(1.0, (prices.backward + prices.step) / groups);
  }
  return prices;
}

// Calls `check` with random small models, their best solutions and the numbers of the problems.
void each_model(int count,
                const std::function<void(Random&, const AssignModel&, const Best&)>& check) {
  Random random(kSeed);
  int checked = 0;
  for (int i = 0; i < count; ++i) {
    const auto model = make_model(random_small_assign(random));
    const auto best = best_of(model);
    INFO("seed " << kSeed << ", problem " << i);
    if (best.solution.empty()) continue;
    check(random, model, best);
    ++checked;
  }
  CHECK(checked > count / 2);
}

}  // namespace

TEST_CASE("the table of a sweep is the least time of the steps that are left, at any prices") {
  each_model(300, [](Random& random, const AssignModel& model, const Best& best) {
    const ThresholdRange range{threshold_of(model, best.solution),
                               threshold_of(model, best.solution)};
    Sweep sweep(model, choose_order(model), kWork);
    double constant = 0;
    const auto unary = charged(model, range, random_prices(random, model), constant);
    const double total = sweep.backward(unary);
    const auto& steps = sweep.steps();
    // By step and state: the least time of the steps from it on.
    std::vector<std::vector<double>> least;
    for (const auto& step : steps) least.emplace_back(step.states, kInfinity);
    each_solution(model, [&](std::vector<int>& solution) {
      double rest = 0;
      for (size_t i = steps.size(); i-- > 0;) {
        const auto& step = steps[i];
        const int own = solution[step.variable];
        rest += unary[step.variable][own];
        uint64_t state = 0;
        for (size_t k = 0; k < step.frontier.size(); ++k) {
          state += solution[step.frontier[k]] * step.stride[k];
        }
        for (const auto& link : step.links) {
          const int other = solution[step.frontier[link.slot]];
          rest += link.time[other * model.variables[step.variable].size() + own];
        }
        least[i][state] = std::min(least[i][state], rest);
      }
    });
    CHECK(total == Approx(least[0][0]).epsilon(kRounding));
    for (size_t i = 0; i < steps.size(); ++i) {
      for (uint64_t state = 0; state < steps[i].states; ++state) {
        if (std::isinf(least[i][state])) continue;
        REQUIRE(sweep.rest(i, state) <= least[i][state] * (1 + kRounding));
        REQUIRE(sweep.rest(i, state) >= least[i][state] * (1 - kRounding));
      }
    }
  });
}

TEST_CASE("with pairs left out, the table of a sweep is a lower bound of every solution") {
  int left_out = 0;
  each_model(400, [&](Random&, const AssignModel& model, const Best&) {
    Sweep sweep(model, choose_order(model), 15);
    left_out += !sweep.exact();
    double constant = 0;
    const double total = sweep.backward(
        charged(model, {}, {0, 0, std::vector<double>(model.groups + model.moments)}, constant));
    each_solution(model, [&](std::vector<int>& solution) {
      const auto time = time_of(model, solution);
      if (time >= kForbidden) return;
      REQUIRE(total <= static_cast<double>(time) * (1 + kRounding));
      double own = 0;
      for (size_t v = 0; v < solution.size(); ++v) {
        own += static_cast<double>(model.variables[v].uses[solution[v]].time);
      }
      // The shares of a left-out pair and its excess are its time.
      CHECK(own + sweep.pair_total(solution) <= static_cast<double>(time) * (1 + kRounding));
    });
  });
  CHECK(left_out > 50);
}

TEST_CASE("time with memory at any prices is a lower bound of every solution within memory") {
  each_model(300, [](Random& random, const AssignModel& model, const Best& best) {
    if (!model.limited) return;
    const auto threshold = threshold_of(model, best.solution);
    // A wider range has a lower bound, too.
    const auto& all = model.thresholds;
    const ThresholdRange wide{all.front(), all.back()}, exact{threshold, threshold};
    for (const auto& range : {wide, exact}) {
      Sweep sweep(model, choose_order(model), kWork);
      double constant = 0;
      const double total = sweep.backward(
          charged(model, range, random_prices(random, model), constant));
      const auto time = static_cast<double>(best.time);
      REQUIRE(total - constant <= time + kRounding * (time + constant));
      Pool pool;
      const auto relaxed = relax(model, sweep, range, {.target = time}, pool,
                                 [](std::span<const int>) {});
      REQUIRE(relaxed.bound <= time * (1 + kRounding));
    }
    const auto priced = price_memory(model, kWork, Deadline::max());
    REQUIRE(priced.lower_bound <= static_cast<double>(best.time) * (1 + kRounding));
  });
}

TEST_CASE("without a memory limit the relaxation is the best time") {
  each_model(300, [](Random&, const AssignModel& model, const Best&) {
    auto free = model;
    free.limited = false;
    const auto time = static_cast<double>(best_of(free).time);
    Sweep sweep(free, choose_order(free), kWork);
    Pool pool;
    const auto relaxed = relax(free, sweep, {}, {.target = 2 * time + 1}, pool,
                               [](std::span<const int>) {});
    CHECK(relaxed.bound == Approx(time).epsilon(kRounding).margin(kRounding));
  });
}

TEST_CASE("a search for the best time alone finds it, and dropped labels leave its bound") {
  int dropped = 0;
  each_model(600, [&](Random& random, const AssignModel& model, const Best& best) {
    const auto threshold = threshold_of(model, best.solution);
    const ThresholdRange range{threshold, threshold};
    const auto time = static_cast<double>(best.time);
    Sweep sweep(model, choose_order(model), kWork);
    for (const bool priced : {false, true}) {
      double constant = 0;
      const Prices none{0, 0, std::vector<double>(model.groups + model.moments)};
      const bool charges = priced && model.limited;
      sweep.backward(
          charged(model, range, charges ? random_prices(random, model) : none, constant));
      for (const size_t most : {size_t{100000}, size_t{2}}) {
        int64_t found = kForbidden;
        const auto outcome = search_labels(
            model, sweep, range, constant,
            {.target = time * (1 + kRounding) + kRounding,
             .most_labels = most,
             .deadline = Deadline::max()},
            [&](std::span<const int> solution) {
              const bool fits = !model.limited || memory_of(model, solution) <= model.capacity;
              if (fits) found = std::min(found, time_of(model, solution));
              return fits;
            });
        CAPTURE(priced, most);
        if (most > 2) {
          CHECK(found == best.time);
          continue;
        }
        dropped += found > best.time;
        if (found > best.time) CHECK(outcome.dropped <= time * (1 + kRounding) + kRounding);
      }
    }
  });
  CHECK(dropped > 20);
}

TEST_CASE("an interrupted search of stages tells a lower bound of every sequence") {
  Random random(kSeed);
  int unfinished = 0;
  for (int i = 0; i < 2000; ++i) {
    auto problem = random_small_stages(random);
    // The least sum with the shortest longest stage of a range: equal stages make it exact.
    const auto expected = exhaustive(problem);
    if (!expected) continue;
    INFO("seed " << kSeed << ", problem " << i);
    const auto stopped = stages_by_search(problem, std::chrono::steady_clock::time_point::min());
    REQUIRE(stopped.lower_bound <= *expected * (1 + kRounding));
    unfinished += !stopped.finished;
  }
  CHECK(unfinished > 100);
}

TEST_CASE("sequences that nearly take the best time do not hide it") {
  Random random(kSeed);
  int hidden = 0;
  for (int i = 0; i < 1000; ++i) {
    auto problem = random_small_stages(random);
    const auto expected = exhaustive(problem);
    if (!expected || *expected == 0 || problem.microbatches < 2) continue;
    // One stage on all devices has the least sum and the longest stage: it is found first.
    const double nearly = *expected * (1 + uniform(random, 1e-7, 1e-3));
    problem.submeshes.push_back({1, problem.devices});
    problem.candidates.push_back({.first = 0,
                                  .last = problem.layers - 1,
                                  .submesh = static_cast<int>(problem.submeshes.size()) - 1,
                                  .time = nearly / static_cast<double>(problem.microbatches)});
    INFO("seed " << kSeed << ", problem " << i);
    REQUIRE(first_error(problem, solve(problem, {.solver = "labels"}), expected) == "");
    ++hidden;
  }
  CHECK(hidden > 200);
}
