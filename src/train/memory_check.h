// Whether what a plan needs is there.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "cost/cluster.h"
#include "plan/plan.h"

namespace perigee::train {

// Returns what to change where a plan needs more memory than there is; "" where nobody knows.
using Remedy = std::function<std::string()>;

// Throws Error where a rank's predicted peak is more than its device has:
// which rank, of which stage, by how much, and what to change.
void check_memory(const plan::Plan& plan, const cost::Cluster& cluster, const Remedy& remedy = {});

// The same for ranks that share the memory of their host, so many of them on each.
struct HostMemory {
  int64_t ranks = 1;
  double bytes = 0;
};
void check_memory(const plan::Plan& plan, const HostMemory& host, const Remedy& remedy = {});

}  // namespace perigee::train
