// Searches at a memory limit just above the least peak of any plan.
#include <catch2/catch.hpp>

#include "base/fail.h"
#include "simulate/report.h"
#include "tests/search/support_search.h"

namespace perigee {
namespace {

using search::ChainPlanner;
using search::cluster;

// Returns the least peak memory of the programs of any plan under the pins, in bytes; `which`:
// its choice.
double least_peak(ChainPlanner& planner, const cost::Cluster& on, const std::string& pins,
                  std::string& which) {
  double least = 1e300;
  planner.request.pins = search::parse_pins(nlohmann::json::parse(pins));
  for (const auto& candidate :
       search::candidates(planner.request, on, planner.none, planner.traces, 100000)) {
    try {
      double peak = 0;
      planner.judge(candidate, on, peak);
      if (peak >= least) continue;
      least = peak;
      which = search::to_string(candidate.choice);
    } catch (const Error&) {  // not every combination can be compiled
    }
  }
  planner.request.pins = {};
  return least;
}

}  // namespace

TEST_CASE("a plan is found if only slow plans fit, whose memory the model underestimates") {
  struct Case {
    search::Chain shape;
    int64_t world;
    std::string pins;  // that leave plans with little memory
  };
  const std::string mesh_of_one_size = R"({"submeshes": false, "offload": true})";
  const std::vector<Case> cases = {
      {{.blocks = 3, .batch = 12, .width = 256}, 1, mesh_of_one_size},
      {{.blocks = 6, .batch = 12, .width = 32}, 2, mesh_of_one_size},
      {{.blocks = 3, .batch = 16, .width = 128}, 4, mesh_of_one_size},
      // Programs of data-parallel stages with optimizer state on the host take 1.6 times the
      // model's memory.
      {{.blocks = 4, .batch = 24, .width = 64},
       5,
       R"({"submeshes": [[["data", 3]], [["tensor", 2]]]})"},
      {{.blocks = 3, .batch = 24, .width = 64}, 5, R"({"submeshes": [[["tensor", 3]], [], []]})"}};
  for (const auto& [shape, world, pins] : cases) {
    ChainPlanner planner(shape, world);
    const auto on = cluster(world);
    std::string which;
    const double least = least_peak(planner, on, pins, which);
    CAPTURE(world, shape.blocks, which);
    planner.request.memory_limit = 1.02 * least;
    try {
      CHECK(planner.find(on).best.peak_bytes <= planner.request.memory_limit);
    } catch (const Error& error) {
      FAIL_CHECK(error.what());
    }
    planner.request.memory_limit = 0.5 * least;
    CHECK_THROWS_WITH(planner.find(on), Catch::StartsWith("[auto] no plan fits: of ") &&
                                            Catch::Contains(" more than the "));
  }
}

TEST_CASE("if no plan can be compiled, the error has the reason") {
  ChainPlanner planner({.blocks = 4}, 2);
  const auto spec = planner.request.spec;
  int calls = 0;  // the first call is the model's
  planner.request.spec = [&](const graph::Graph& graph) {
    if (++calls > 1) fail("compile", "a reason");
    return spec(graph);
  };
  CHECK_THROWS_WITH(planner.find(cluster(2)),
                    Catch::StartsWith("[auto] no plan fits: of ") &&
                        Catch::EndsWith("is refused: [compile] a reason"));
}

}  // namespace perigee
