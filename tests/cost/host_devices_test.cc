// Clusters of which a plan uses some devices of each host.
#include "cost/host_devices.h"

#include <catch2/catch.hpp>

#include "base/error.h"

using namespace perigee;
using namespace perigee::cost;
using Catch::Contains;

namespace {

// 4 hosts of 8 devices, two hosts in a rack; the last host has other devices.
Cluster cluster() {
  DeviceSpec fast{.name = "fast", .count = 24}, slow{.name = "slow", .count = 8};
  return {.name = "four hosts",
          .devices = {fast, slow},
          .links = {{"node", 8, 1e-6, 300e9, ""},
                    {"rack", 16, 2e-6, 50e9, ""},
                    {"fabric", 32, 5e-6, 25e9, ""}}};
}

}  // namespace

TEST_CASE("a plan uses the first devices of each host, at the hosts' own levels") {
  const auto few = host_devices(cluster(), 2);
  CHECK(few.ranks() == 8);
  CHECK(few.device(5).name == "fast");
  CHECK(few.device(6).name == "slow");
  CHECK(few.level(0, 1) == 0);
  CHECK(few.level(1, 2) == 1);
  CHECK(few.level(3, 4) == 2);
  CHECK(few.links[1].bandwidth == 50e9);
  CHECK(host_devices(cluster(), 8) == cluster());
}

TEST_CASE("with one device of each host no level is within a host") {
  const auto one = host_devices(cluster(), 1);
  CHECK(one.ranks() == 4);
  CHECK(one.links.front().level == "rack");
  CHECK(one.level(0, 1) == 0);
  CHECK(one.level(1, 2) == 1);
}

TEST_CASE("a host has no more devices than the cluster describes") {
  CHECK_THROWS_WITH(
      host_devices(cluster(), 16),
      Contains("must be from 1 to the 8 devices of a host of four hosts, but got 16"));
}
