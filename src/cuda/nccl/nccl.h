// Ranks with a GPU each, which exchange tensors by NCCL.
#pragma once

#include <memory>

#include "cuda/device.h"
#include "exec/comm/communicator.h"
#include "exec/comm/rendezvous.h"

namespace perigee::cuda {

// Returns this rank's communicator after all ranks have joined. A group's collectives run one after
// the other on a stream of its own, concurrently with compute: Work::wait() makes the current
// stream wait, never the host. Messages run on a stream (and an NCCL communicator) for each pair of
// ranks and direction, so that two ranks may send to each other at once. Sums are NCCL's: bit-equal
// on all ranks, and from run to run on the same GPUs and NCCL. The collectives of a recorded step
// (exec/recorder.h) have one time-out together: check() throws, with the name of the first one that
// has not ended, where their launch has not ended within the time-out and the time that the step
// takes unrecorded. Throws Error when the ranks do not meet or NCCL does not start.
std::unique_ptr<exec::Communicator> nccl_communicator(const exec::RendezvousOptions& options,
                                                      std::shared_ptr<CudaDevice> device);

}  // namespace perigee::cuda
