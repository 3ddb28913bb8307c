// Work that takes one rank longer than the others, which wait.
#pragma once

#include <functional>

#include "exec/communicator.h"
#include "job/job.h"

namespace perigee::train {

// Runs `work` on this rank, or nothing where it is empty, and returns when all ranks of the group
// have done theirs. A rank that works is not silent, however long it takes: while one does, all
// tell each other several times in cluster.timeout that they are there. The work must not use the
// group. Throws what it throws; the others then lose this rank.
void run_together(exec::Group& group, const job::Job& job, const std::function<void()>& work);

}  // namespace perigee::train
