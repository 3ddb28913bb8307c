// Whether all ranks see the run's folder.
#pragma once

#include "exec/comm/communicator.h"
#include "job/job.h"

namespace perigee::train {

// Throws Error on all ranks where one of them does not see a file that rank 0 writes to train.output
// (whose path may differ from host to host), so that a run whose ranks cannot write a checkpoint
// together ends before its first step. All ranks call it.
void require_shared_folder(const job::Job& job, exec::Communicator& communicator);

}  // namespace perigee::train
