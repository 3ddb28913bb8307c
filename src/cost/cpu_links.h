// Links between the ranks of a host without a GPU.
#pragma once

#include <cstdint>
#include <string>

#include "cost/cluster.h"

namespace perigee::cost {

// Returns the link between `ranks` processes of one host that exchange tensors through shared
// memory (exec/comm/shared), which cpu_cluster has.
Link shared_memory_link(int64_t ranks);

// Returns the link between `ranks` processes that exchange tensors by Gloo, with the figures of the
// loopback interface: those of one host (level "host"), or of several ("network").
Link gloo_link(int64_t ranks, std::string level = "host");

}  // namespace perigee::cost
