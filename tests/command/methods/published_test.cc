// Simulated steps of published plans (strategies/published) against the plans of the search.
// tools/bench/published.cc compares larger plans, and predicted with published step times.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/command/support.h"

using namespace perigee::test;
using nlohmann::json;

namespace {

json simulated(const std::string& about) {
  const Folder folder;
  How how;
  how.environment["XDG_CACHE_HOME"] = folder / "cache";
  const auto ran = run("simulate strategies/published/" + about + " --json", how);
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  return json::parse(ran.out);
}

}  // namespace

TEST_CASE("the search finds a plan no slower than a published plan that fits") {
  struct PublishedPlan {
    const char *name, *cluster;
  };
  for (const auto& plan : {PublishedPlan{"llama-70b", " --cluster 384x8xa100 --nproc 64"},
                           PublishedPlan{"moe-64e", " --cluster 32x8xh100"}}) {
    const std::string name = plan.name;
    CAPTURE(name);
    const auto own = simulated(name + ".lua" + plan.cluster);
    const auto found = simulated(name + ".toml --strategy strategies/published/auto.lua" +
                                 plan.cluster);
    CHECK(own["mfu"] > 0);
    CHECK(found["step_seconds"].get<double>() <= own["step_seconds"].get<double>() * (1 + 1e-9));
    for (const auto& rank : found["ranks"]) CHECK(rank["peak_bytes"] <= 0.92 * 80e9);
  }
}
