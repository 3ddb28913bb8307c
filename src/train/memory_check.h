// Whether what a plan needs is there.
#pragma once

#include <cstdint>

#include "cost/cluster.h"
#include "plan/plan.h"

namespace perigee::train {

// Throws Error where a rank's predicted peak is more than its device has:
// which rank, of which stage, by how much, and what to change.
void check_memory(const plan::Plan& plan, const cost::Cluster& cluster);

// The same for ranks that share the memory of their host, so many of them on each.
struct HostMemory {
  int64_t ranks = 1;
  double bytes = 0;
};
void check_memory(const plan::Plan& plan, const HostMemory& host);

}  // namespace perigee::train
