// Collectives of GPU tensors through the host.
#pragma once

#include <memory>

#include "exec/comm/communicator.h"

namespace perigee::cuda {

// Returns a communicator that copies operands to the host, runs the collective on `inner` and
// copies results back. The host waits for the GPU at every start: it is for ranks that share a GPU,
// not fast.
std::unique_ptr<exec::Communicator> by_host_communicator(std::shared_ptr<exec::Communicator> inner);

}  // namespace perigee::cuda
