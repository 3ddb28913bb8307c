// Collectives of tensors on GPUs by way of the host.
#pragma once

#include <memory>

#include "exec/comm/communicator.h"

namespace perigee::cuda {

// Copies operands to the host, lets `inner` carry the collective out and copies results back. The
// host waits for the GPU at every start: for ranks that share a GPU, not for speed.
std::unique_ptr<exec::Communicator> by_host_communicator(std::shared_ptr<exec::Communicator> inner);

}  // namespace perigee::cuda
