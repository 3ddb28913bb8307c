#include "search/explain/method_costs.h"

#include <catch2/catch.hpp>

#include "base/fail.h"

namespace perigee::search {

using nlohmann::json;

TEST_CASE("a method's cost is the excess of the plan with it over the plan without it") {
  // Each method costs a second, but "fast" saves half a second; a plan requires "base".
  const auto judge = [](const json& methods) {
    PlanCost taken;
    bool base = false;
    for (const auto& use : methods) {
      const auto name = use.is_string() ? use.get<std::string>() : use[0].get<std::string>();
      base = base || name == "base";
      taken.seconds += name == "fast" ? -0.5 : 1;
      taken.peak_bytes += name == "fast" ? 100 : 10;
    }
    if (!base) fail("test", "a plan needs base");
    return taken;
  };
  const auto strategy = json::parse(R"([["parallel_mode", [["data", 2]]], "base", ["fast", {}]])");
  const auto costs = method_costs(strategy, judge);
  REQUIRE(costs.size() == 2);
  CHECK(costs[0].method == "base");
  CHECK(costs[0].refused == "[test] a plan needs base");
  CHECK(costs[1].method == "fast");
  CHECK(costs[1].seconds == -0.5);
  CHECK(costs[1].bytes == 100);
  CHECK(method_costs({{"methods", strategy}}, judge, "fast").size() == 1);
  // A method's own cost is reported, even if there is no plan without the method.
  const auto own = [](const json& use, const PlanCost& with,
                      const std::optional<PlanCost>& without) {
    std::optional<PlanCost> reported;
    if (use == "base") reported = {with.seconds, without ? 1.0 : 0.0};
    return reported;
  };
  const auto with_own = method_costs(strategy, judge, "", own);
  CHECK(with_own[0].own);
  CHECK(with_own[0].refused == "");
  CHECK(with_own[0].seconds == 1.5);
  CHECK(with_own[0].bytes == 0);
  CHECK(!with_own[1].own);
  CHECK(with_own[1].seconds == -0.5);
  CHECK_THROWS_WITH(method_costs(strategy, judge, "fest"),
                    Catch::Contains("did you mean \"fast\"?"));
  CHECK_THROWS_WITH(method_costs(json("base"), judge), Catch::Contains("a list of methods"));
}

}  // namespace perigee::search
