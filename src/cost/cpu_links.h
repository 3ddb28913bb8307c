// Links between the ranks of a host without a GPU.
#pragma once

#include <cstdint>

#include "cost/cluster.h"

namespace perigee::cost {

// Returns the link between `ranks` processes of one host that exchange tensors through shared
// memory (exec/comm/shared), which cpu_cluster has.
Link shared_memory_link(int64_t ranks);

// Returns the link between `ranks` processes of one host that exchange tensors by Gloo, over the
// loopback interface.
Link gloo_link(int64_t ranks);

}  // namespace perigee::cost
