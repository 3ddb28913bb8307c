// Ranks of a benchmark that are processes of one host, each on one core, and the model that they train.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/network/address.h"
#include "exec/comm/shared/communicator.h"

namespace perigee::bench {

// 29.4 million parameters.
inline constexpr const char* kLargeGpt =
    "[model]\nkind = 'gpt'\nlayers = 8\nwidth = 512\nheads = 8\nvocab = 8192\n"
    "[data]\nsynthetic = true\nsequence = 64\n";

// Runs `rank` in a process for each rank, with one thread on one core; rank 0 is this process.
// Returns whether it returned true in all. Called before the first op: LibTorch's threads do not
// survive a fork.
inline bool run_ranks(int64_t ranks, const std::function<bool(int64_t)>& rank) {
  const auto run = [&](int64_t number) {
    at::set_num_threads(1);
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(number % sysconf(_SC_NPROCESSORS_ONLN), &core);
    return sched_setaffinity(0, sizeof core, &core) == 0 && rank(number);
  };
  std::vector<pid_t> children;
  for (int64_t number = 1; number < ranks; ++number) {
    children.push_back(fork());
    if (children.back() == 0) _exit(run(number) ? 0 : 1);
  }
  bool good = run(0);
  for (const auto child : children) {
    int status = 0;
    good &= child > 0 && waitpid(child, &status, 0) == child && status == 0;
  }
  return good;
}

// Returns the rank's communicator. `host`: takes the place of this host's name.
inline std::unique_ptr<exec::Communicator> connect(int64_t rank, int64_t ranks,
                                                   const Listener& listener,
                                                   exec::ProcessOptions::Carrier carrier,
                                                   std::shared_ptr<exec::SharedMemory> memory,
                                                   const std::string& host = "") {
  return exec::process_communicator(
      {.rendezvous = {.port = listener.port,
                      .rank = rank,
                      .world = ranks,
                      .serve = rank == 0,
                      .listen_socket = rank == 0 ? listener.socket : -1},
       .carrier = carrier,
       .local_ranks = ranks,
       .memory = std::move(memory),
       .host = host});
}

// Seconds that the cores have worked for this process: unlike the wall's, they do not depend on
// the machine's other work.
inline double worked() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Returns the sum over all ranks.
inline double sum(exec::Group& group, double value) {
  auto x = at::full({1}, value, at::kDouble);
  group.run({.kind = exec::Collective::Kind::all_reduce, .input = x, .output = x});
  return x.item<double>();
}

}  // namespace perigee::bench
