// The search at the least memory that a plan needs.
#include <catch2/catch.hpp>

#include "base/fail.h"
#include "simulate/report.h"
#include "tests/search/support_search.h"

namespace perigee {
namespace {

using search::Asked;
using search::cluster;

// Returns the least that any plan under the pins takes, by its programs, and which one does.
double least_of_all(Asked& asked, const cost::Cluster& on, const std::string& pins,
                    std::string& which) {
  double least = 1e300;
  asked.request.pins = search::parse_pins(nlohmann::json::parse(pins));
  for (const auto& candidate :
       search::candidates(asked.request, on, asked.none, asked.traces, 100000)) {
    try {
      double peak = 0;
      asked.judge(candidate, on, peak);
      if (peak >= least) continue;
      least = peak;
      which = search::to_string(candidate.choice);
    } catch (const Error&) {  // what cannot be compiled is no plan
    }
  }
  asked.request.pins = {};
  return least;
}

}  // namespace

TEST_CASE("a plan is found where one fits that is slow, and that the model says too little of") {
  struct Case {
    search::Chain shape;
    int64_t world;
    std::string pins;  // of one that needs little
  };
  const std::string alike = R"({"submeshes": false, "offload": true})";
  const std::vector<Case> cases = {
      {{.blocks = 3, .batch = 12, .width = 256}, 1, alike},
      {{.blocks = 6, .batch = 12, .width = 32}, 2, alike},
      {{.blocks = 3, .batch = 16, .width = 128}, 4, alike},
      // Of stages in data ranks with an optimizer on the host programs take 1.6 times as much.
      {{.blocks = 4, .batch = 24, .width = 64},
       5,
       R"({"submeshes": [[["data", 3]], [["tensor", 2]]]})"},
      {{.blocks = 3, .batch = 24, .width = 64}, 5, R"({"submeshes": [[["tensor", 3]], [], []]})"}};
  for (const auto& [shape, world, pins] : cases) {
    Asked asked(shape, world);
    const auto on = cluster(world);
    std::string which;
    const double least = least_of_all(asked, on, pins, which);
    CAPTURE(world, shape.blocks, which);
    asked.request.memory_limit = 1.02 * least;
    try {
      CHECK(asked.find(on).best.peak_bytes <= asked.request.memory_limit);
    } catch (const Error& error) {
      FAIL_CHECK(error.what());
    }
    asked.request.memory_limit = 0.5 * least;
    CHECK_THROWS_WITH(asked.find(on), Catch::StartsWith("[auto] no plan fits: of ") &&
                                          Catch::Contains(" more than the "));
  }
}

TEST_CASE("where no plan can be compiled, the error says why") {
  Asked asked({.blocks = 4}, 2);
  const auto spec = asked.request.spec;
  int asks = 0;  // the first is for what the model counts
  asked.request.spec = [&](const graph::Graph& graph) {
    if (++asks > 1) fail("compile", "a reason");
    return spec(graph);
  };
  CHECK_THROWS_WITH(asked.find(cluster(2)), Catch::StartsWith("[auto] no plan fits: of ") &&
                                                Catch::EndsWith("is refused: [compile] a reason"));
}

}  // namespace perigee
