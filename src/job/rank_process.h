// The process of a rank.
#pragma once

#include <cstdint>
#include <optional>

#include "job/place.h"

namespace perigee::job {

// Makes CUDA load all kernels at its start in the process of one of several ranks, unless the user
// has set CUDA_MODULE_LOADING. Otherwise it loads a kernel at its first launch, and waits for the
// GPU meanwhile: for a transfer from a rank that may wait for this kernel's result. Call it before
// the process uses CUDA.
void load_kernels_at_start(const RankPlace& place);

// Returns how many of the several ranks of this process's job run on its host, by its launcher's
// variables (place_from_environment's, of which perigee's own launcher sets torchrun's). Nothing for
// other processes.
std::optional<int64_t> ranks_of_host();

}  // namespace perigee::job
