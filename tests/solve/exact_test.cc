// The solvers against known answers, exhaustive enumeration and each other.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "solve/solve.h"
#include "tests/solve/support.h"

using namespace perigee::solve;
using namespace perigee::solve::testing;

namespace {

constexpr uint64_t kExactSeed = 20240611;

std::optional<double> time_of(const Result& result) {
  if (result.verdict == Verdict::infeasible) return std::nullopt;
  return result.time;
}

}  // namespace

TEST_CASE("every solver gives the known answers of the examples") {
  int count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator("tests/solve/examples")) {
    const auto path = entry.path().string();
    const auto at = path.rfind(".expected.json");
    if (at == std::string::npos) continue;
    const auto expected = nlohmann::json::parse(read_file(path));
    const auto problem = parse_problem(read_file(path.substr(0, at) + ".json"));
    std::optional<double> time;
    if (!expected["time"].is_null()) time = expected["time"].get<double>();
    for (const char* solver : {"auto", "labels", "ilp"}) {
      INFO(path << " by " << solver);
      const auto result = solve(problem, {.solver = solver});
      CHECK(first_error(problem, result, time, 2e-9) == "");
      CHECK(result.solver == (std::string(solver) == "ilp" ? "ilp" : "labels"));
    }
    ++count;
  }
  CHECK(count == 18);
}

TEST_CASE(
    "the answers of 2,000 small random assign problems equal exhaustive search, with a tight "
    "bound") {
  Random random(kExactSeed);
  int infeasible = 0, limited = 0;
  for (int i = 0; i < 2000; ++i) {
    const Problem problem = random_small_assign(random);
    const auto expected = exhaustive(std::get<AssignProblem>(problem));
    infeasible += !expected;
    auto unlimited = std::get<AssignProblem>(problem);
    unlimited.memory_limit.reset();
    const auto free_time = exhaustive(unlimited);
    limited += expected && *expected > *free_time;
    const auto said = first_error(problem, solve(problem, {.solver = "labels"}), expected);
    INFO("seed " << kExactSeed << ", problem " << i);
    REQUIRE(said == "");
    REQUIRE(first_error(unlimited, solve(unlimited, {.solver = "labels"}), free_time) == "");
  }
  // The random problems must cover enough feasible and infeasible cases.
  CHECK(infeasible > 100);
  CHECK(infeasible < 800);
  CHECK(limited > 500);
}

TEST_CASE("a choice of zero time is proven to be the best for any times of the others") {
  AssignProblem problem;
  for (const double time : {1.0 / 3e9, 1.0 / 7e10}) {
    problem.ops.push_back({.name = "op", .options = {{.time = time}, {.time = 0}}});
  }
  problem.edges.push_back({0, 1, {0, 1.0 / 9e9, 1.0 / 1.1e9, 0}});
  for (const bool limited : {false, true}) {
    if (limited) problem.memory_limit = 1;
    const auto result = solve(problem, {.solver = "labels"});
    CHECK(result.verdict == Verdict::optimal);
    CHECK(result.choice == std::vector<int>{1, 1});
    CHECK(result.lower_bound == 0);
  }
}

TEST_CASE(
    "the answers of 2,000 small random stages problems equal exhaustive search, with a tight "
    "bound") {
  Random random(kExactSeed);
  int infeasible = 0, limited = 0;
  for (int i = 0; i < 2000; ++i) {
    const Problem problem = random_small_stages(random);
    const auto expected = exhaustive(std::get<StagesProblem>(problem));
    infeasible += !expected;
    auto unlimited = std::get<StagesProblem>(problem);
    for (auto& candidate : unlimited.candidates) candidate.max_successors.reset();
    limited += exhaustive(unlimited) != expected;
    INFO("seed " << kExactSeed << ", problem " << i);
    REQUIRE(first_error(problem, solve(problem, {.solver = "labels"}), expected) == "");
  }
  CHECK(infeasible > 50);
  CHECK(infeasible < 1200);
  CHECK(limited > 50);
}

TEST_CASE("with a gap, the answer and its bound are within the gap of the optimum") {
  Random random(kExactSeed);
  int worse = 0, solved = 0;
  for (int i = 0; i < 1000; ++i) {
    const Problem problem = random_small_assign(random);
    const auto expected = exhaustive(std::get<AssignProblem>(problem));
    const auto result = solve(problem, {.solver = "labels", .gap = 0.2});
    INFO("seed " << kExactSeed << ", problem " << i);
    REQUIRE((result.verdict == Verdict::infeasible) == !expected);
    if (!expected) continue;
    ++solved;
    worse += result.time > *expected * (1 + 1e-9);
    CHECK(result.time * (1 - 0.2) <= *expected * (1 + 1e-9));
    CHECK(result.lower_bound <= *expected * (1 + 1e-9));
    CHECK(result.lower_bound >= result.time * (1 - 0.2 - 1e-9));
  }
  CHECK(solved > 300);
  CHECK(worse > 0);
}

// Solves so many random problems of each kind twice.
void compare_with_cbc(int assign, int stages) {
  Random random(kExactSeed);
  for (int i = 0; i < assign; ++i) {
    AssignShape shape{.ops = 10 + i % 6, .options = 4, .edge_share = i % 3 == 0 ? 0.05 : 0};
    shape.groups = i % 4 == 1;
    shape.follows = i % 5 == 2;
    shape.moments = i % 7 == 3;
    shape.forbidden = i % 3 == 2 ? 0.1 : 0;
    shape.whole = i % 2 == 0;
    shape.same = i % 5 == 4;
    shape.tightness = 0.2 + 0.1 * (i % 7);
    const Problem problem = random_assign(random, shape);
    const auto other = solve(problem, {.solver = "ilp"});
    INFO("seed " << kExactSeed << ", assign problem " << i);
    // CBC's tolerance is 1e-6.
    REQUIRE(first_error(problem, solve(problem, {.solver = "labels"}), time_of(other), 1e-6) == "");
  }
  for (int i = 0; i < stages; ++i) {
    const Problem problem = random_stages(
        random, {.layers = 6 + i % 4, .devices = 8, .density = 0.4, .whole = i % 2 == 0});
    const auto other = solve(problem, {.solver = "ilp"});
    INFO("seed " << kExactSeed << ", stages problem " << i);
    REQUIRE(first_error(problem, solve(problem, {.solver = "labels"}), time_of(other), 1e-6) == "");
  }
}

TEST_CASE("labels and CBC agree on problems of medium size") { compare_with_cbc(50, 20); }

TEST_CASE("labels and CBC agree on 200 problems of medium size", "[.long]") {
  compare_with_cbc(140, 60);
}

TEST_CASE("problems are solved in any unit of time, and with times of very different magnitude") {
  Random random(kExactSeed + 9);
  const auto draw = [&](int below) { return std::uniform_int_distribution(0, below - 1)(random); };
  // Five of ten times become 0, and one is multiplied by a million.
  const auto spread = [&](double& time, double unit) {
    const int kind = draw(10);
    time *= kind < 5 ? 0 : kind == 5 ? 1e6 * unit : unit;
  };
  for (int i = 0; i < 300; ++i) {
    const double unit = std::pow(10.0, draw(60) - 30);
    auto assign = random_small_assign(random);
    for (auto& op : assign.ops) {
      for (auto& option : op.options) spread(option.time, unit);
    }
    for (auto& edge : assign.edges) {
      for (auto& time : edge.time) {
        if (std::isfinite(time)) spread(time, unit);
      }
    }
    auto stages = random_small_stages(random);
    for (auto& candidate : stages.candidates) spread(candidate.time, unit);
    const auto assign_time = exhaustive(assign), stages_time = exhaustive(stages);
    for (const char* solver : {"labels", "ilp"}) {
      INFO("problem " << i << " by " << solver << ", unit " << unit);
      REQUIRE(first_error(assign, solve(assign, {.solver = solver}), assign_time) == "");
      REQUIRE(first_error(stages, solve(stages, {.solver = solver}), stages_time) == "");
    }
  }
}

TEST_CASE("without a limit, the answer does not depend on memory") {
  Random random(kExactSeed);
  for (int i = 0; i < 50; ++i) {
    auto problem = random_assign(random, {.ops = 12, .options = 5, .memory = false});
    const auto time = solve(problem).time;
    for (auto& op : problem.ops) {
      for (auto& option : op.options) option.resident = option.saved = option.transient = 1e9;
    }
    CHECK(solve(problem).time == time);
  }
}

TEST_CASE("without a limit, answers of problems with long-range edges equal CBC's") {
  Random random(kExactSeed);
  for (int i = 0; i < 20; ++i) {
    const Problem problem = random_assign(random, {.ops = 40,
                                                   .options = 5,
                                                   .edge_share = 0.02,
                                                   .memory = false,
                                                   .forbidden = i % 3 == 2 ? 0.1 : 0,
                                                   .whole = i % 2 == 0});
    const auto other = solve(problem, {.solver = "ilp"});
    INFO("seed " << kExactSeed << ", problem " << i);
    REQUIRE(first_error(problem, solve(problem, {.solver = "labels"}), time_of(other), 1e-6) == "");
  }
}

TEST_CASE("problems with long-range edges are solved if memory does not bind, else bounded") {
  Random random(kExactSeed);
  int bound = 0;
  for (int i = 0; i < 10; ++i) {
    auto problem = random_assign(
        random,
        {.ops = 40, .options = 5, .edge_share = 0.02, .whole = i % 2 == 0, .tightness = 0.8});
    INFO("seed " << kExactSeed << ", problem " << i);
    auto unlimited = problem;
    unlimited.memory_limit.reset();
    const auto free = solve(unlimited, {.solver = "labels"});
    auto loose = problem;
    loose.memory_limit = free.memory;
    REQUIRE(first_error(loose, solve(loose, {.solver = "labels", .time_limit = 0.5}), free.time) ==
            "");
    const auto limited = solve(problem, {.solver = "labels", .time_limit = 0.5});
    const auto other = solve(problem, {.solver = "ilp", .time_limit = 2});
    CHECK(limited.lower_bound >= free.time * (1 - 1e-9));
    CHECK(limited.lower_bound <= other.time * (1 + 1e-6));
    CHECK(other.lower_bound <= limited.time * (1 + 1e-6));
    bound += limited.lower_bound > free.time * (1 + 1e-6);
  }
  CHECK(bound > 4);
}

TEST_CASE("a limit that does not bind leaves the answer unchanged") {
  // Without a limit, variables are eliminated. With one, thresholds are searched in spaces narrowed
  // to near-optimal options; a bound of such a space is valid only for these options.
  Random random(kExactSeed);
  int searched = 0;
  for (int i = 0; i < 40; ++i) {
    auto problem = random_assign(random, {.ops = 32,
                                          .options = 10,
                                          .edge_share = 0.06,
                                          .memory = false,
                                          .forbidden = i % 3 == 2 ? 0.1 : 0,
                                          .whole = i % 2 == 0});
    const auto free = solve(problem, {.solver = "labels"});
    problem.memory_limit = 1e6;
    const auto limited = solve(problem, {.solver = "labels", .time_limit = 5});
    INFO("seed " << kExactSeed << ", problem " << i);
    REQUIRE((limited.verdict == Verdict::infeasible) == (free.verdict == Verdict::infeasible));
    if (limited.verdict == Verdict::infeasible) continue;
    CHECK(limited.lower_bound <= free.time * (1 + 1e-9));
    CHECK(limited.time >= free.time * (1 - 1e-9));
    searched += limited.verdict == Verdict::optimal;
  }
  CHECK(searched > 30);
}

TEST_CASE("a larger limit never gives a slower answer, and the answer fits its reported memory") {
  Random random(kExactSeed);
  for (int i = 0; i < 20; ++i) {
    auto problem = random_assign(random,
                                 {.ops = 14, .options = 6, .groups = i % 2 == 0, .tightness = 0.3});
    double last = std::numeric_limits<double>::infinity();
    for (int k = 0; k < 5; ++k) {
      const auto result = solve(problem, {.solver = "labels"});
      if (result.verdict != Verdict::infeasible) {
        CHECK(result.time <= last * (1 + 1e-9));
        last = result.time;
        auto exact = problem;
        exact.memory_limit = result.memory;
        CHECK(solve(exact, {.solver = "labels"}).time == Approx(result.time).epsilon(1e-9));
      }
      *problem.memory_limit *= 1.1;
    }
  }
}
