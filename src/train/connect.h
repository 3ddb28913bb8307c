// How a rank that is a process of its own meets the others.
#pragma once

#include <memory>

#include "exec/communicator.h"
#include "job/job.h"
#include "job/place.h"

namespace perigee::train {

// Returns the rank's communicator once all have come; alone, without a network. Throws Error when
// the ranks do not meet within cluster.timeout.
std::unique_ptr<exec::Communicator> connect(const job::Job& job, const job::RankPlace& place);

}  // namespace perigee::train
