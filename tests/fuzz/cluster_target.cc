// A cluster's TOML (cost/cluster.h).
#include "cost/cluster.h"
#include "tests/fuzz/target.h"

using namespace perigee;

PERIGEE_FUZZ_TARGET(cluster) {
  const auto cluster = cost::parse_cluster(input, "cluster.toml");
  // Every pair of ranks is joined, and every rank has a device.
  const auto last = cluster.ranks() - 1;
  cluster.level(0, last);
  cluster.device(last);
  fuzz::require(cluster.least_memory() > 0, "a device has no memory");
}
