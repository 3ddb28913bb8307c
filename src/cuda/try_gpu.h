// A short test of a GPU, for `perigee doctor`.
#pragma once

#include <string>

namespace perigee::cuda {

// Runs a kernel of this folder, a matrix product, a copy to pinned memory and back, and a sum by
// NCCL with one rank. Returns "" where all results are right, else the first failure.
std::string try_gpu(int index);

}  // namespace perigee::cuda
