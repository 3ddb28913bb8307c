#include "job/rank_process.h"

#include <stdlib.h>

namespace perigee::job {

void load_kernels_at_start(const RankPlace& place) {
  if (place.world > 1) ::setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
}

}  // namespace perigee::job
