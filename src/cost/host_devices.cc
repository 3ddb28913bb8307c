#include "cost/host_devices.h"

#include <algorithm>

#include "base/fail.h"

namespace perigee::cost {

Cluster host_devices(const Cluster& cluster, int64_t devices) {
  const int64_t all = cluster.ranks();
  const int64_t host = cluster.links.empty() ? all : cluster.links.front().ranks;
  if (devices < 1 || devices > host) {
    fail("cluster", "host_devices must be from 1 to the {} devices of a host of {}, but got {}",
         host, cluster.name, devices);
  }
  auto few = cluster;
  few.devices.clear();
  for (int64_t rank = 0; rank < all; ++rank) {
    if (rank % host >= devices) continue;
    const auto& device = cluster.device(rank);
    auto same = device;
    same.count = few.devices.empty() ? 0 : few.devices.back().count;
    if (few.devices.empty() || few.devices.back() != same) {
      same.count = 0;
      few.devices.push_back(same);
    }
    ++few.devices.back().count;
  }
  for (auto& link : few.links) link.ranks = link.ranks / host * devices;
  std::erase_if(few.links, [](const Link& link) { return link.ranks <= 1; });
  return few;
}

}  // namespace perigee::cost
