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
  std::string rendezvous;     // HOST:PORT, required with several nodes
  double stop_seconds = 1.5;  // how long ranks may go on after the user's signal
  std::string lost;           // what is, where such a signal ends them: for the message
};

// Runs `body` in one forked process for each rank of this host. `body` returns the rank's exit
// status, or throws; it runs before any thread exists. Returns 0 when all ranks did, else the
// status of the first that failed, and shows its message alone; those that only lost the others
// ("[communicator]") are heard where no rank failed by itself. The others are told to stop
// (SIGTERM) and killed 1.5 s later. SIGINT, SIGTERM and SIGHUP reach the ranks as SIGTERM once; the
// second kills them, and so does the end of `stop_seconds`. A rank dies when this process does.
// Throws Error when the port cannot be bound or a process cannot be made.
int launch(const LaunchOptions& options, const std::function<int(const Place&)>& body);

}  // namespace perigee::command
