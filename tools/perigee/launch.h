// The launcher: forks the ranks of this host, watches them, and ends all of them when one fails or
// the user says stop.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace perigee::command {

// Where one rank stands and how the ranks find each other.
struct Place {
  int64_t rank = 0;
  int64_t world = 1;
  int64_t local_rank = 0;
  int64_t local_world = 1;
  std::string host = "127.0.0.1";  // rank 0's store
  int port = 0;
  int listen_fd = -1;  // rank 0 under our own launcher: the socket that already listens on `port`
};

// Returns this process's place when torchrun, Slurm or mpirun started it, else nothing. Throws
// Error when their environment is incomplete, naming the variable.
std::optional<Place> place_from_environment();

struct LaunchOptions {
  int64_t ranks = 1;  // on this host
  int64_t nodes = 1;
  int64_t node_rank = 0;
  std::string rendezvous;  // HOST:PORT, required with several nodes
};

// Runs `body` in one forked process for each rank of this host. `body` returns the rank's exit
// status; it runs before any thread exists. Returns 0 when all ranks did, else the status of the
// first rank that failed; the others are told to stop (SIGTERM) and killed 2 s later. SIGINT and
// SIGTERM reach the ranks as SIGTERM once and, at the second, kill them. A rank dies when this
// process does. Throws Error when the port cannot be bound or a process cannot be made.
int launch(const LaunchOptions& options, const std::function<int(const Place&)>& body);

}  // namespace perigee::command
