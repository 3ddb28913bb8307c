// The calls of the simulated NCCL (nccl.cc), and the data that they move.
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/calls.h"
#include "tests/cuda/simulated/nccl/windows.h"
#include "tests/cuda/simulated/races.h"

namespace perigee::cuda::simulated {

struct NcclCall {
  enum class Kind { all_reduce, all_gather, reduce_scatter, reduce, broadcast, send, receive };
  Kind kind = Kind::all_reduce;
  int rank = 0;
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclUint8;
  ncclRedOp_t op = ncclSum;
  int root = 0;  // or peer
  WindowPlace from_place = {}, to_place = {};

  size_t bytes() const;  // of `count` elements
};

// Returns whether calls of several ranks are one collective or message.
bool fit(const std::vector<NcclCall>& calls);

// Moves the data of calls that fit. Results are written after all operands are read, since a call
// may be in place.
void perform(std::vector<NcclCall> calls);

// Returns the memory that a rank's call reads and writes. `size`: the communicator's ranks.
Accesses accesses_of(const NcclCall& call, int size);

}  // namespace perigee::cuda::simulated
