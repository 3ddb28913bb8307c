// Whether a plan fits the memory of its devices.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cost/cluster.h"
#include "plan/plan.h"

namespace perigee::train {

// Returns the changes by which a plan would fit; "" where none is known.
using Remedy = std::function<std::string()>;

// Throws Error where a rank's predicted peak is more than its device's memory: names the
// rank, its stage, the excess and the changes that would make the plan fit.
void check_memory(const plan::Plan& plan, const cost::Cluster& cluster, const Remedy& remedy = {});

// Memory that `ranks` ranks of a host share: the first ones, then the next ones, and so on.
struct HostMemory {
  int64_t ranks = 1;
  double bytes = 0;
  std::vector<int64_t> checkpoint_bytes = {};  // of each rank's copy of a checkpoint; empty: none
};

// The same for hosts with that memory each.
void check_memory(const plan::Plan& plan, const HostMemory& host, const Remedy& remedy = {});

}  // namespace perigee::train
