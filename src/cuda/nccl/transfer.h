// A collective or message as NCCL calls.
#pragma once

#include <cstdint>

#include "cuda/nccl/lane.h"
#include "exec/comm/communicator.h"

namespace perigee::cuda {

// Submits a collective to the lane's stream. `index`: this rank's position in the lane; `scratch`: a float of the GPU, for barriers. Throws std::exception where NCCL refuses it.
void submit_collective(Lane& lane, const exec::Transfer& transfer, int64_t index, float* scratch);

// Submits a send or receive to the lane's stream. `peer`: the other rank's position in the lane.
void submit_message(Lane& lane, const exec::Transfer& transfer, int peer);

// Submits a message of one byte of the GPU's memory from the lane's first rank to its second.
void submit_byte(Lane& lane, void* byte, bool sends);

}  // namespace perigee::cuda
