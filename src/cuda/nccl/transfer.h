// One collective as NCCL's calls.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "exec/comm/communicator.h"

namespace perigee::cuda {

// Gives a collective (no message) to the current stream. `ranks` is the group's size and `index`
// this rank's place in it.
void carry_out(c10d::ProcessGroupNCCL& nccl, exec::Transfer& transfer, int64_t ranks,
               int64_t index);

}  // namespace perigee::cuda
