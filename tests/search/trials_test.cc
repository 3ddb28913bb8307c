// Searches by trials: the tried combinations, their order, and the end of the search.
#include "search/trials.h"

#include <catch2/catch.hpp>
#include <set>

#include "base/fail.h"

using namespace perigee;
using nlohmann::json;
using search::Trial;
using search::TrialOptions;
using search::Variables;

namespace {

const Variables kVariables = {
    {{{"zero", 0}}, {{"zero", 1}}, {{"zero", 3}}},
    {{{"tensor", 1}, {"pipe", 1}}, json::object()},
    {json::object(), {{"methods", {{"amp_native", {{"dtype", "bf16"}}}}}}}};

// A plan is faster with a higher ZeRO level, more methods and no tensor axis; level 3 does not fit.
void attempt(Trial& trial, double) {
  if (trial.pins["zero"] == 3) fail("test", "no plan fits");
  trial.seconds = 10.0 - trial.pins["zero"].get<double>() - double(trial.pins["methods"].size()) -
                  (trial.pins.contains("tensor") ? 0.0 : 0.5);
  trial.strategy = trial.pins;
}

search::Trials run(const TrialOptions& options, const json& common = json::object()) {
  double now = 0;
  return search::run_trials(common, kVariables, options, attempt, [&] { return now++; });
}

}  // namespace

TEST_CASE("combination tries every combination, and reports those without a plan") {
  const auto all = run({.algorithm = "combination", .trials = 2});
  CHECK(all.ended == "all");
  CHECK(all.combinations == 12);
  REQUIRE(all.list.size() == 12);
  std::set<std::vector<int>> seen;
  for (const auto& trial : all.list) {
    seen.insert(trial.options);
    CHECK((trial.refused == "[test] no plan fits") == (trial.pins["zero"] == 3));
  }
  CHECK(seen.size() == 12);
  const auto& best = all.list[static_cast<size_t>(all.best)];
  CHECK(best.options == std::vector<int>{1, 1, 1});
  CHECK(best.seconds == 7.5);
  // Common pins leave the combinations that agree with them; lists of methods are joined.
  const auto some = run({.algorithm = "combination"}, {{"zero", 1}, {"methods", {"half"}}});
  CHECK(some.list.size() == 4);
  CHECK(some.list[static_cast<size_t>(some.best)].pins["methods"].size() == 2);
  for (const auto& trial : some.list) CHECK(trial.pins["methods"][0] == "half");
}

TEST_CASE("a random search of very many combinations tries some of them, each once") {
  search::Variables variables;
  for (int v = 0; v < 30; ++v)
    variables.push_back({json::object(), {{"n" + std::to_string(v), 1}}});
  const auto attempt = [](Trial& trial, double) { trial.seconds = 1; };
  const auto run = [&](const TrialOptions& options) {
    return search::run_trials({}, variables, options, attempt, [] { return 0.0; });
  };
  const auto random = run({.algorithm = "random", .trials = 50});
  CHECK(random.combinations == int64_t{1} << 30);
  std::set<std::vector<int>> seen;
  for (const auto& trial : random.list) seen.insert(trial.options);
  CHECK(seen.size() == 50);
  variables.resize(64, variables.front());
  CHECK_THROWS_WITH(run({.algorithm = "random"}), Catch::Contains("at most 2^62 combinations"));
}

TEST_CASE("a search ends at its number of trials, its patience or its time limit") {
  const auto random = run({.algorithm = "random", .trials = 5});
  CHECK(random.ended == "trials");
  CHECK(random.list.size() == 5);
  const auto patient = run({.algorithm = "bo", .trials = 100, .patience = 2});
  CHECK(patient.ended == "patience");
  CHECK(std::ssize(patient.list) - 1 - patient.best == 3);
  const auto whole = run({.algorithm = "bo", .trials = 100, .patience = 0});
  CHECK(whole.ended == "all");
  CHECK(whole.list[static_cast<size_t>(whole.best)].seconds == 7.5);
  // The clock advances one second in each trial; the first trial always runs.
  const auto timed = run({.algorithm = "combination", .time_limit = 4.5});
  CHECK(timed.ended == "time");
  CHECK(timed.list.size() == 4);
  CHECK(run({.algorithm = "combination", .time_limit = 0.5}).list.size() == 1);
}

TEST_CASE("a search by trials ends where options contradict pins or each other") {
  // Each of the first two agrees with the pins, but they do not with each other.
  Variables apart = {{{{"zero", 1}}}, {{{"zero", 3}}}};
  for (int v = 0; v < 30; ++v) {
    apart.push_back({json::object(), {{"n" + std::to_string(v), 1}}});
  }
  double now = 0;
  const auto trials = search::run_trials({}, apart, {.algorithm = "random", .time_limit = 4},
                                         attempt, [&] { return now++; });
  CHECK(trials.ended == "time");
  CHECK(trials.list.empty());
  CHECK_THROWS_WITH(
      run({.algorithm = "random"}, {{"zero", 2}}),
      Catch::Contains("an option that agrees with the pins {\"zero\":2}, but has [{\"zero\":0}"));
}

TEST_CASE("options of a search by trials are checked") {
  const auto parse = [](const json& table) {
    Variables variables;
    const auto options = search::parse_trials(table, variables);
    return std::pair(options, variables);
  };
  const auto [options, variables] = parse({{"algorithm", "combination"},
                                           {"time_limit", 2.5},
                                           {"variables", {{{{"zero", 1}}, json::array()}}}});
  CHECK(options.algorithm == "combination");
  CHECK(options.time_limit == 2.5);
  REQUIRE(variables.size() == 1);
  CHECK(variables[0][1] == json::object());
  CHECK_THROWS_WITH(parse({{"variables", {{{{"zreo", 1}}}}}}),
                    Catch::Contains("did you mean \"zero\"?"));
  CHECK_THROWS_WITH(parse({{"trails", 3}}), Catch::Contains("did you mean \"trials\"?"));
  CHECK_THROWS_WITH(parse({{"time_limit", 0}}), Catch::Contains("time_limit = 0"));
  CHECK_THROWS_WITH(parse({{"trials", 0}}), Catch::Contains("at least 1, but got 0"));
  CHECK_THROWS_WITH(run({.algorithm = "combinations"}),
                    Catch::Contains("did you mean \"combination\"?"));
  CHECK_THROWS_WITH(search::run_trials({}, {{}}, {}, attempt, [] { return 0.0; }),
                    Catch::Contains("at least one option"));
}
