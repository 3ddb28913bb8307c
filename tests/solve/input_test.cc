// Errors of invalid problems name their place, and results have the documented format.
#include <catch2/catch.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "solve/evaluate.h"
#include "solve/solve.h"
#include "tests/solve/support.h"

using namespace perigee::solve;
using namespace perigee::solve::testing;
using perigee::Error;
using perigee::Status;

namespace {

nlohmann::json assign() {
  return nlohmann::json::parse(
      R"({"format": "perigee.problem/1", "kind": "assign", "memory_limit": 10,
    "ops": [{"name": "fc1", "options": [{"time": 1, "resident": 3}, {"time": 2}]},
            {"name": "fc2", "options": [{"time": 1, "saved": 4}, {"time": 5, "saved": 1}]}],
    "edges": [{"from": 0, "to": 1, "time": [[0, 2], [1, null]]}], "moments": [[0, 1]]})");
}
nlohmann::json stages() {
  return nlohmann::json::parse(
      R"({"format": "perigee.problem/1", "kind": "stages", "layers": 2, "devices": 3,
    "microbatches": 4, "submeshes": [[1, 1], [1, 2]],
    "candidates": [{"first": 0, "last": 0, "submesh": 0, "time": 1, "max_successors": 1},
                   {"first": 1, "last": 1, "submesh": 1, "time": 2}]})");
}

std::string error_of(const std::string& text) {
  try {
    parse_problem(text);
  } catch (const Error& error) {
    CHECK(error.status() == Status::invalid);
    return error.what();
  }
  return "";
}
// Returns the error of the problem with the value at a JSON pointer replaced.
std::string error_at(nlohmann::json problem, const char* pointer, nlohmann::json value) {
  problem[nlohmann::json::json_pointer(pointer)] = std::move(value);
  return error_of(problem.dump());
}

Result solved(const nlohmann::json& problem, const char* solver = "auto") {
  return solve(parse_problem(problem.dump()), {.solver = solver});
}

}  // namespace

TEST_CASE("a wrong number is an error that names its place") {
  CHECK(error_of(assign().dump()) == "");
  CHECK(error_of(stages().dump()) == "");
  CHECK(error_at(assign(), "/ops/1/options/0/time", -1) ==
        "[solve] ops[1].options[0].time must be a finite number >= 0, but got -1");
  CHECK(error_at(assign(), "/ops/0/options/1/saved", "x") ==
        "[solve] ops[0].options[1].saved must be a number, but got \"x\"");
  CHECK(error_at(assign(), "/ops/0/options/1/saved", nullptr) ==
        "[solve] ops[0].options[1].saved must be a number, but got null");
  CHECK(error_at(assign(), "/memory_limit", -3) ==
        "[solve] memory_limit must be a finite number >= 0, but got -3");
  CHECK(error_at(assign(), "/edges/0/time/0/1", -2) ==
        "[solve] edges[0].time[0][1] must be a finite number >= 0, but got -2");
  CHECK(error_at(assign(), "/edges/0/to", 2) ==
        "[solve] edges[0].to must be between 0 and 1, but got 2");
  CHECK(error_at(assign(), "/edges/0/to", 0) ==
        "[solve] edges[0] must join two different ops, but got 0 twice");
  CHECK(error_at(assign(), "/edges/0/time/1", {1}) ==
        "[solve] edges[0].time[1] must have 2 values (options of ops[1]), but got 1");
  CHECK(error_at(assign(), "/moments/0/1", 0) ==
        "[solve] moments[0] must list an op once, but got 0 twice");
  CHECK(error_at(assign(), "/ops/0/options", nlohmann::json::array()) != "");
  CHECK(error_at(assign(), "/transient_count", -1) ==
        "[solve] transient_count must be >= 0, but got -1");
  CHECK(error_at(assign(), "/transient_count", 1.5) ==
        "[solve] transient_count must be an integer, but got 1.5");
  CHECK(error_at(assign(), "/ops/1/follows", 1) ==
        "[solve] ops[1].follows must be between 0 and 0, but got 1");
  CHECK(error_at(stages(), "/candidates/1/last", 0) ==
        "[solve] candidates[1].last must be between 1 and 1, but got 0");
  CHECK(error_at(stages(), "/candidates/1/time", -0.5) ==
        "[solve] candidates[1].time must be a finite number >= 0, but got -0.5");
  CHECK(error_at(stages(), "/candidates/0/max_successors", -1) ==
        "[solve] candidates[0].max_successors must be >= 0, but got -1");
  CHECK(error_at(stages(), "/submeshes/0", {1}) ==
        "[solve] submeshes[0] must be [hosts, devices per host], but got [1]");
  CHECK(error_at(stages(), "/layers", 0) == "[solve] layers must be >= 1, but got 0");
  CHECK(error_at(stages(), "/layers", 2147483647) ==
        "[solve] layers must be at most 1000000, but got 2147483647");
  CHECK(error_at(stages(), "/devices", 1e12) ==
        "[solve] devices must be between 1 and 2147483647, but got 1000000000000.0");
  CHECK(
      error_of(
          R"({"format": "perigee.problem/1", "kind": "assign", "ops": [{"options": [{"time": 1e999}]}]})") !=
      "");
  CHECK(
      error_of(
          R"({"format": "perigee.problem/1", "kind": "assign", "ops": [{"options": [{"time": NaN}]}]})") !=
      "");
}

TEST_CASE("an unknown key, kind or format is an error that names the nearest known one") {
  CHECK(error_at(assign(), "/memory_limmit", 3) ==
        "[solve] problem: unknown key \"memory_limmit\", did you mean \"memory_limit\"?");
  CHECK(error_at(assign(), "/ops/1/options/0/residnet", 3) ==
        "[solve] ops[1].options[0]: unknown key \"residnet\", did you mean \"resident\"?");
  CHECK(error_at(stages(), "/candidates/0/frist", 3) ==
        "[solve] candidates[0]: unknown key \"frist\", did you mean \"first\"?");
  CHECK(
      error_at(stages(), "/kind", "stage") ==
      "[solve] kind must be \"assign\" or \"stages\", but got \"stage\", did you mean \"stages\"?");
  CHECK(error_at(stages(), "/format", "perigee.problem/2") ==
        "[solve] format must be \"perigee.problem/1\", but got \"perigee.problem/2\"");
  CHECK(error_of("[1, 2]") == "[solve] a problem must be an object, but got [1,2]");
  CHECK(error_of("{\"format\": ") != "");
  CHECK(error_of("{}") == "[solve] format is missing");
}

TEST_CASE("a follower has as many options as its leader") {
  auto problem = assign();
  problem["ops"][1]["follows"] = 0;
  CHECK(error_of(problem.dump()) == "");
  problem["ops"][1]["options"].push_back({{"time", 1}});
  problem["edges"] = nlohmann::json::array();
  CHECK(error_of(problem.dump()) ==
        "[solve] ops[1] must have as many options as ops[0], which it follows (2), but got 3");
}

TEST_CASE("a problem built in code has the same checks as one that is read") {
  AssignProblem problem{.ops = {{.options = {{.time = std::nan("")}}}}};
  CHECK_THROWS_WITH(solve(problem),
                    Catch::Contains("ops[0].options[0].time must be a finite number"));
  CHECK_THROWS_WITH(solve(AssignProblem{}, {.solver = "label"}),
                    Catch::Contains("did you mean \"labels\""));
  CHECK_THROWS_WITH(solve(AssignProblem{}, {.time_limit = 0}),
                    Catch::Contains("time limit must be positive"));
}

TEST_CASE("numbers whose sums could overflow are refused") {
  auto problem = assign();
  problem["ops"][0]["options"][0]["time"] = 1e308;
  CHECK_THROWS_WITH(solved(problem),
                    Catch::Contains("ops[0].options[0].time must be at most 1e+100"));
  problem = assign();
  problem["edges"][0]["time"][0][0] = 1e101;
  CHECK_THROWS_WITH(solved(problem), Catch::Contains("edges[0].time[0][0] must be at most"));
  problem = assign();
  for (auto& op : problem["ops"]) {
    for (auto& option : op["options"]) option["time"] = 1e100;
  }
  for (const char* solver : {"labels", "ilp"}) CHECK(solved(problem, solver).time == 2e100);
}

TEST_CASE("a problem without ops takes no time") {
  for (const char* solver : {"labels", "ilp"}) {
    const auto result = solve(AssignProblem{}, {.solver = solver});
    CHECK(result.verdict == Verdict::optimal);
    CHECK(result.time == 0);
    CHECK(result.choice.empty());
  }
}

TEST_CASE("a memory limit that is too small is reported with the least sufficient one") {
  auto problem = assign();
  CHECK(solved(problem).time == 2);
  problem["memory_limit"] = 0.5;
  for (const char* solver : {"labels", "ilp"}) {
    const auto result = solved(problem, solver);
    CHECK(result.verdict == Verdict::infeasible);
    CHECK(result.reason ==
          "memory_limit 0.5 is too small: the least peak memory of any choice is 4, 3.5 more "
          "(resident 3 + saved 1)");
  }
  problem["ops"][0]["options"][1]["live"] = 20;
  problem["ops"][0]["options"][0]["live"] = 20;
  CHECK(solved(problem).reason ==
        "memory_limit 0.5 is too small: the least peak memory of any choice is 20, 19.5 more "
        "(moments[0] alone holds 20)");
}

TEST_CASE("forbidden pairs that leave no choice are reported with the pair to allow") {
  auto problem = assign();
  problem["edges"][0]["time"] = {{nullptr, nullptr}, {nullptr, nullptr}};
  CHECK_THAT(solved(problem).reason,
             Catch::Contains("every choice takes a pair of options that an edge forbids") &&
                 Catch::Contains("at least 1") && Catch::Contains("edges[0] (\"fc1\" to \"fc2\")"));
}

TEST_CASE(
    "an infeasible problem names the forbidden pairs that would fit in memory, or the missing "
    "bytes") {
  auto problem = assign();
  problem["edges"][0]["time"] = {{nullptr, nullptr}, {nullptr, nullptr}};
  problem["memory_limit"] = 1;
  CHECK_THAT(solved(problem).reason, Catch::Contains("allow [1][1]") && !Catch::Contains("then"));
  problem["memory_limit"] = 0.5;
  const auto reason = solved(problem).reason;
  CHECK_THAT(reason, Catch::Contains("then memory_limit 0.5 is too small"));
}

TEST_CASE("a problem with the number of devices that a reason suggests has a solution") {
  auto problem = nlohmann::json::parse(
      R"({"format": "perigee.problem/1", "kind": "stages", "layers": 2, "devices": 6,
    "microbatches": 4, "submeshes": [[1, 1], [1, 3], [1, 4]],
    "candidates": [{"first": 0, "last": 0, "submesh": 2, "time": 1, "max_successors": 0},
                   {"first": 1, "last": 1, "submesh": 0, "time": 2},
                   {"first": 0, "last": 1, "submesh": 1, "time": 2}]})");
  CHECK(solved(problem).reason ==
        "devices 6: no sequence of candidates uses exactly that many; the nearest use 3 (3 fewer)");
  problem["candidates"].erase(2);
  CHECK_THAT(solved(problem).reason,
             Catch::Contains("those of 5") && Catch::Contains("max_successors"));
  problem["candidates"].erase(0);
  CHECK(solved(problem).reason ==
        "candidates: no sequence covers all 2 layers; none begins at layer 0");
}

TEST_CASE("an infeasible stages problem reports the violated constraint and by which amount") {
  auto problem = stages();
  CHECK(solved(problem).time == 3 + 3 * 2);
  problem["devices"] = 5;
  CHECK(solved(problem).reason ==
        "devices 5: no sequence of candidates uses exactly that many; the nearest use 3 (2 fewer)");
  problem["devices"] = 2;
  CHECK(solved(problem).reason ==
        "devices 2: no sequence of candidates uses exactly that many; the nearest use 3 (1 more)");
  problem["devices"] = 3;
  problem["candidates"][0]["max_successors"] = 0;
  CHECK(solved(problem).reason ==
        "max_successors: every sequence that fits has a stage with more stages after it than it "
        "allows, by at least 1");
  problem["candidates"].erase(1);
  CHECK(solved(problem).reason ==
        "candidates: no sequence covers all 2 layers; layers 0..0 can be covered in order, the "
        "last 1 not");
}

TEST_CASE("results are printed with the format's keys") {
  const auto good = nlohmann::json::parse(to_json(solved(assign())));
  CHECK(good["format"] == "perigee.result/1");
  CHECK(good["status"] == "optimal");
  CHECK(good["time"] == 2);
  CHECK(good["lower_bound"] == 2);
  CHECK(good["memory"] == 7);
  CHECK(good["choice"] == nlohmann::json({0, 0}));
  CHECK(good["solver"] == "labels");
  CHECK(good["seconds"].is_number());
  auto problem = assign();
  problem["memory_limit"] = 1;
  const auto bad = nlohmann::json::parse(to_json(solved(problem)));
  CHECK(bad["status"] == "infeasible");
  CHECK(bad["reason"].is_string());
  CHECK(bad.size() == 5);
  CHECK_THAT(to_text(solved(assign()), parse_problem(assign().dump())),
             Catch::Contains("optimal") && Catch::Contains("fc1=0 fc2=0"));
  CHECK_THAT(to_text(solved(stages()), parse_problem(stages().dump())),
             Catch::Contains("stage 1: layers 1-1 on 1x2 devices"));
}

TEST_CASE("at the time limit, the result is the best choice so far with a valid bound") {
  Random random(7);
  // Edges between all pairs of ops: no elimination order keeps the frontier small.
  auto problem = random_assign(random, {.ops = 40, .options = 8, .edge_share = 2, .chain = false});
  const double limit = GENERATE(1e-6, 0.3);
  const auto start = std::chrono::steady_clock::now();
  const auto result = solve(problem, {.solver = "labels", .time_limit = limit});
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < 20);
  CHECK(result.verdict != Verdict::infeasible);
  CHECK(result.lower_bound <= result.time);
  CHECK(evaluate(problem, result.choice).allowed);
}

TEST_CASE("a problem of which too little time shows nothing is neither solved nor infeasible") {
  Random random(7);
  // CBC's relaxation takes longer than the time that it gets.
  const auto problem = random_assign(random,
                                     {.ops = 60, .options = 12, .edge_share = 2, .chain = false});
  const Options options{.solver = "ilp", .time_limit = 1e-6};
  const auto result = solve_in_time(problem, options);
  CHECK(result.verdict == Verdict::unknown);
  CHECK(result.choice.empty());
  CHECK_THROWS_WITH(solve(problem, options),
                    Catch::Contains("passed before a solution was found or ruled out"));
  CHECK(solve(problem, {.solver = "labels", .time_limit = 1e-6}).verdict == Verdict::feasible);
}

TEST_CASE("a time limit holds for CBC's first relaxation, too") {
  // The relaxation of 110,000 columns takes CBC twenty seconds.
  Random random(3);
  const auto problem = random_assign(
      random, {.ops = 96, .options = 24, .edge_share = 0.021, .same = false});
  const auto start = std::chrono::steady_clock::now();
  const auto result = solve(problem, {.solver = "auto", .time_limit = 1});
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < 10);
  CHECK(result.verdict != Verdict::infeasible);
  CHECK(result.lower_bound <= result.time);
}
