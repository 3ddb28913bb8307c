// A cluster of which a plan uses some devices of each host.
#pragma once

#include <cstdint>

#include "cost/cluster.h"

namespace perigee::cost {

// Returns the cluster with the first `devices` ranks of each host, the block of its innermost
// level: on 8 x 8 devices, host_devices(cluster, 2) has ranks 0 and 1 on the first host, 2 and 3 on
// the second. Throws Error where a host has fewer, or outer levels do not connect whole hosts.
Cluster host_devices(const Cluster& cluster, int64_t devices);

}  // namespace perigee::cost
