// The settings that all ranks of a job must share.
#pragma once

#include "exec/comm/agreement.h"
#include "job/job.h"

namespace perigee::train {

// Returns the settings that are compared with rank 0's: the job's shared keys and the size of
// its data.
exec::Settings shared_settings(const job::Job& job);

}  // namespace perigee::train
