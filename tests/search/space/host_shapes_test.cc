// The shape of a plan's ranks, hosts x devices of each, on a described cluster.
#include <catch2/catch.hpp>

#include "cost/host_devices.h"
#include "tests/search/support_search.h"

using namespace perigee;
using namespace perigee::search;

TEST_CASE("plans on 1 x 8, 2 x 4, 4 x 2 and 8 x 1 devices take different times") {
  auto hosts = cluster(64);
  hosts.links = {{"node", 8, 1e-6, 20e9, ""}, {"fabric", 64, 1e-5, 0.5e9, ""}};
  double before = 0;
  for (const int64_t devices : {8, 4, 2, 1}) {
    INFO(devices << " devices of each host");
    ChainPlanner planner({.blocks = 4, .batch = 16}, 8);
    const auto found = planner.find(cost::host_devices(hosts, devices));
    CHECK(found.best.seconds > before);
    before = found.best.seconds;
  }
  CHECK_THROWS_WITH(parse_pins({{"host_devices", 0}}), Catch::Contains("host_devices"));
  CHECK(parse_pins({{"host_devices", 4}}).host_devices == 4);
}
