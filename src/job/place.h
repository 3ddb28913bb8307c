// A rank's position in its job, and the address of the rendezvous.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace perigee::job {

struct RankPlace {
  int64_t rank = 0;
  int64_t world = 1;
  int64_t local_rank = 0;  // among the ranks of this host
  int64_t local_world = 1;
  std::string host = "127.0.0.1";  // of rank 0's store
  int port = 0;
  std::string interface;  // of this host, for transfers between ranks; "": by the route to `host`
  std::string secret;     // of the job (RendezvousOptions::secret)
  int listen_fd = -1;     // rank 0 under our own launcher: a socket that already listens on `port`
};

// Returns this process's place when torchrun, Slurm or mpirun started it, else nothing. Throws
// Error when their environment is incomplete, naming the variable.
std::optional<RankPlace> place_from_environment();

// Returns how many tasks of this process's Slurm step run on its node, which the step lists by node
// ("4(x2),3"). Nothing for processes of no step.
std::optional<int64_t> tasks_of_slurm_node();

}  // namespace perigee::job
