// Ranks as processes that exchange tensors by c10d's Gloo.
#pragma once

#include <memory>

#include "exec/comm/communicator.h"
#include "exec/comm/rendezvous.h"

namespace perigee::exec {

using GlooOptions = RendezvousOptions;

// Returns this rank's communicator after all ranks have joined. Collectives of a group run one
// after the other on the group's thread, concurrently with compute. Throws Error when the ranks do
// not join within the time-out.
std::unique_ptr<Communicator> gloo_communicator(const GlooOptions& options);
// The same for ranks that have met.
std::unique_ptr<Communicator> gloo_communicator(const GlooOptions& options, const Meeting& meeting);

}  // namespace perigee::exec
