// The launcher: forks the ranks of this host, watches them, and ends all of them when one fails or
// the user stops them.
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
  std::string interface;      // for transfers between hosts; "": by the route to the rendezvous
  std::string secret;         // of the job; "": on one host, a random one
  double stop_seconds = 1.5;  // how long ranks may go on after the user's signal
  std::string lost_work;      // for the message after such a signal: the work that is lost
};

// Runs `body` in one forked process for each rank of this host. `body` returns the rank's exit
// status, or throws; it runs before any thread exists. Returns 0 when all ranks did, else the
// status of the first that failed, and shows only its message; a message of a rank that only lost
// its peers ("[communicator]") is shown where no rank failed by itself. The others get SIGTERM and
// are killed 1.5 s later. SIGINT, SIGTERM and SIGHUP reach the ranks as SIGTERM once; the
// second kills them, and so does the end of `stop_seconds`. A rank dies when this process does.
// Throws Error when the port cannot be bound or a process cannot be made.
int launch(const LaunchOptions& options, const std::function<int(const Place&)>& body);

}  // namespace perigee::command
