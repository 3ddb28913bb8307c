// Ranks as processes of a test.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/network/address.h"
#include "exec/comm/shared/communicator.h"
#include "exec/op_threads.h"

namespace perigee::exec {

// Throws if `holds` is false. Catch2's checks work on the main thread only.
inline void must(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("wrong: " + what);
}

inline void check_no_errors(const std::vector<std::string>& errors) {
  for (const auto& error : errors) CHECK(error == "");
}

using Carrier = ProcessOptions::Carrier;

// Returns the first `n` ranks.
inline std::vector<int64_t> range(int64_t n) {
  std::vector<int64_t> all(n);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Runs `body` in one process for each rank; returns each rank's error, "" for none. A
// rank that hangs is ended by its own alarm. If the test process has run a backward pass, `body`
// cannot run one. `before(rank)` is called before the rank connects. `memory` becomes the rank's
// shared memory. `hosts`: a letter for each rank, which it takes for the name of its host.
inline std::vector<std::string> fork_ranks(
    int64_t world, const std::function<void(Communicator&)>& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(20), Carrier carrier = Carrier::shared,
    const std::function<void(int64_t)>& before = nullptr,
    std::shared_ptr<SharedMemory>* memory = nullptr, const std::string& hosts = "") {
  const auto listener = listen_at("127.0.0.1", 0, false);
  std::vector<std::pair<pid_t, int>> children;
  for (int64_t rank = 0; rank < world; ++rank) {
    int channel[2];
    must(pipe(channel) == 0, "pipe");
    const pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
      alarm(60);
      close(channel[0]);
      if (rank != 0) close(listener.socket);
      std::string error;
      try {
        exec::set_op_threads(1);
        if (before) before(rank);
        if (memory) *memory = SharedMemory::open();
        const auto communicator = process_communicator(
            {.rendezvous = {.port = listener.port,
                            .rank = rank,
                            .world = world,
                            .serve = rank == 0,
                            .listen_socket = rank == 0 ? listener.socket : -1,
                            .timeout = timeout},
             .carrier = carrier,
             .local_ranks = world,
             .memory = memory ? *memory : nullptr,
             .host = hosts.empty() ? "" : hosts.substr(static_cast<size_t>(rank), 1)});
        try {
          body(*communicator);
          communicator->group("end", range(world))->run({.kind = Collective::Kind::barrier});
        } catch (const std::exception& e) {
          communicator->abort(e.what());
          // Rank 0 runs the store, in which the others find the reason.
          if (rank == 0) usleep(300000);
          throw;
        }
      } catch (const std::exception& e) {
        error = e.what();
      }
      must(write(channel[1], error.data(), error.size()) >= 0, "pipe");
      _exit(0);
    }
    close(channel[1]);
    children.emplace_back(child, channel[0]);
  }
  close(listener.socket);
  std::vector<std::string> errors;
  for (auto [child, channel] : children) {
    std::string error;
    char buffer[4096];
    for (ssize_t n; (n = read(channel, buffer, sizeof buffer)) > 0;) error.append(buffer, n);
    close(channel);
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status)) {
      error = "ended by a signal";
    } else if (error.empty() && WEXITSTATUS(status) != 0) {
      error = "ended with status " + std::to_string(WEXITSTATUS(status));
    }
    errors.push_back(error);
  }
  return errors;
}

// The same over the hosts named by letters: "AAB" has two ranks on one host and one on another.
inline std::vector<std::string> fork_over_hosts(
    const std::string& hosts, const std::function<void(Communicator&)>& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(20),
    const std::function<void(int64_t)>& before = nullptr,
    std::shared_ptr<SharedMemory>* memory = nullptr) {
  return fork_ranks(static_cast<int64_t>(hosts.size()), body, timeout, Carrier::automatic, before,
                    memory, hosts);
}

}  // namespace perigee::exec
