// A collective as NCCL calls.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "exec/comm/communicator.h"

namespace perigee::cuda {

// Submits a collective (not a message) to the current stream. `ranks`: the group's size; `index`:
// this rank's position in it.
void carry_out(c10d::ProcessGroupNCCL& nccl, exec::Transfer& transfer, int64_t ranks,
               int64_t index);

}  // namespace perigee::cuda
