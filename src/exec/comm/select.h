// The choice of the communicator for tensors on a rank's device.
#pragma once

#include <memory>

#include "exec/comm/communicator.h"
#include "exec/comm/rendezvous.h"
#include "exec/device.h"

namespace perigee::exec {

// Returns the communicator for tensors on `device`, once all ranks have called it: `host`, which
// connects the processes of the job, for a CPU; NCCL where each rank has a GPU of its own; else one
// that copies through the host.
std::shared_ptr<Communicator> communicator_of(const std::shared_ptr<Device>& device,
                                              const std::shared_ptr<Communicator>& host,
                                              RendezvousOptions options);

// The same for ranks that are threads of one process.
std::shared_ptr<Communicator> communicator_of_thread(const Device& device,
                                                     const std::shared_ptr<Communicator>& host,
                                                     int64_t ranks);

}  // namespace perigee::exec
