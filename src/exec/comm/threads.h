// Ranks as threads of one process: for tests, planning and CPU work on one host.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "exec/comm/communicator.h"

namespace perigee::exec {

struct ThreadOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // of one wait
};

// Returns the communicators of ranks 0, ..., world - 1, each for one thread. Waits throw Error when
// another rank aborts or does not join within the time-out.
std::vector<std::unique_ptr<Communicator>> thread_communicators(int64_t world,
                                                                ThreadOptions options = {});

// Runs `body` on one thread for each rank, with one LibTorch thread and gradients off. When a rank
// throws, the others' waits end; rethrows the first rank's error when all have ended.
void run_ranks(int64_t world, const std::function<void(Communicator&)>& body,
               ThreadOptions options = {});

}  // namespace perigee::exec
