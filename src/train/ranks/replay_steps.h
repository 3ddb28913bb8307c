// Steps as CUDA graphs, as the job's key cluster.graphs says.
#pragma once

#include <string_view>

#include "exec/executor.h"
#include "job/job.h"
#include "train/ranks/connect.h"

namespace perigee::train {

// Has the executor record its steps and replay them (exec/replay.h) where the job wants it and no
// rank's program prevents it. Where one does and the job has "auto", rank 0's log says once which op.
// A step that the GPU itself refuses to record is an error, except with "auto" and one rank, which
// runs it unrecorded. `steps`: the kind of the steps ("training"), for messages. All ranks call it.
// Throws Error on all ranks where the job requires graphs and they are prevented, or the device is
// the CPU.
void replay_steps(exec::Executor& executor, std::string_view steps, const job::Job& job,
                  const Connection& connection);

}  // namespace perigee::train
