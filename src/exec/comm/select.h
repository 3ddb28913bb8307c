// The choice of the communicator for tensors on a rank's device.
#pragma once

#include <cstdint>
#include <memory>

#include "exec/comm/communicator.h"
#include "exec/comm/rendezvous.h"
#include "exec/device.h"

namespace perigee::exec {

// What carries messages from rank to rank (Collective::Kind::send and receive).
enum class Messages : uint8_t {
  by_device,  // what carries the device's collectives
  by_host,    // the host's communicator, after a copy to its memory
};

// Returns the communicator for tensors on `device`; all ranks call it. For a CPU that is `host`,
// which connects the processes of the job; NCCL where each rank has its own GPU; else one that
// copies through the host.
std::shared_ptr<Communicator> communicator_of(const std::shared_ptr<Device>& device,
                                              const std::shared_ptr<Communicator>& host,
                                              RendezvousOptions options, Messages messages);

// Returns the communicator where ranks are threads of one process.
std::shared_ptr<Communicator> communicator_of_thread(const Device& device,
                                                     const std::shared_ptr<Communicator>& host,
                                                     int64_t ranks);

}  // namespace perigee::exec
