// The settings that all ranks of a job must share.
#pragma once

#include "exec/comm/agreement.h"
#include "job/job.h"
#include "train/task/task.h"

namespace perigee::train {

// Returns the settings that are compared with rank 0's: the job's shared keys, and the size and a
// hash of parts of its data.
exec::Settings shared_settings(const job::Job& job);

// Returns those of the task beside its job: the plan or the strategy with a hash of its file, and,
// where hosts start together, whether the run is resumed or overwritten.
exec::Settings task_settings(const Task& task);

}  // namespace perigee::train
