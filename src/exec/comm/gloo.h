// Ranks as processes that exchange tensors by c10d's Gloo.
#pragma once

#include <memory>

#include "exec/comm/communicator.h"
#include "exec/comm/rendezvous.h"

namespace perigee::exec {

using GlooOptions = RendezvousOptions;

// Returns this rank's communicator once all ranks have come. Collectives of a group run one after
// the other on a thread of their own, beside the computation. Throws Error when the ranks do not
// meet within the time-out.
std::unique_ptr<Communicator> gloo_communicator(const GlooOptions& options);

}  // namespace perigee::exec
