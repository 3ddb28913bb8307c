#include "train/task/threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>

#include "exec/cuda.h"
#include "job/rank_process.h"

namespace perigee::train {

int64_t threads_of_rank(const job::Job& job, int64_t ranks) {
  const auto& cluster = job.cluster;
  if (cluster.threads > 0) return cluster.threads;
  const bool gpu = cluster.device == "cuda" ||
                   (cluster.device.empty() && exec::gpu_driver_present());
  if (gpu || !cluster.file.empty()) return 1;
  const int64_t all = at::intraop_default_num_threads();
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return all;  // of each process
  return std::max<int64_t>(1, all / std::max<int64_t>(1, job::ranks_of_host().value_or(ranks)));
}

}  // namespace perigee::train
