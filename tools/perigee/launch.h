// The launcher: forks the ranks of this host, watches them, and ends all of them when one fails or
// the user says stop.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "job/place.h"

namespace perigee::command {

using Place = job::RankPlace;

struct LaunchOptions {
  int64_t ranks = 1;  // on this host
  int64_t nodes = 1;
  int64_t node_rank = 0;
  std::string rendezvous;  // HOST:PORT, required with several nodes
};

// What a rank returns that stopped only because another one failed: the other's status is the
// job's.
inline constexpr int kStoppedByPeer = 77;

// Runs `body` in one forked process for each rank of this host. `body` returns the rank's exit
// status; it runs before any thread exists. Returns 0 when all ranks did, else the status of the
// first rank that failed; the others are told to stop (SIGTERM) and killed 2 s later. SIGINT and
// SIGTERM reach the ranks as SIGTERM once and, at the second, kill them. A rank dies when this
// process does. Throws Error when the port cannot be bound or a process cannot be made.
int launch(const LaunchOptions& options, const std::function<int(const Place&)>& body);

}  // namespace perigee::command
