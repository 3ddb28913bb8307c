// Ranks as threads, each with a simulated GPU of its own and NCCL.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "exec/comm/communicator.h"
#include "tests/support/torch_test.h"

namespace perigee::cuda {

// Returns 0, 1, ..., n - 1.
std::vector<int64_t> first_ranks(int64_t n);

using Body = std::function<void(exec::Communicator&, CudaDevice&)>;

// Runs `body` on a thread for each of `world` ranks; returns the errors, "" for none.
std::vector<std::string> run_gpus(int world, std::chrono::milliseconds timeout, const Body& body);

// Returns the result of run_gpus without errors.
std::vector<std::string> none(int world);

}  // namespace perigee::cuda
