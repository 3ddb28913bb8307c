// How many threads a rank computes with.
#pragma once

#include <cstdint>

#include "job/job.h"

namespace perigee::train {

// Returns cluster.threads, or its default where the job does not set it. On a CPU that is what
// OMP_NUM_THREADS says, else LibTorch's number for this host divided by the host's ranks; 1 beside
// a GPU and for a described cluster. `ranks`: of the host, unless this process has a launcher.
int64_t threads_of_rank(const job::Job& job, int64_t ranks);

}  // namespace perigee::train
