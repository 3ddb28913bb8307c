// Ranks as processes that exchange tensors by c10d's Gloo. Rendezvous is c10d's TCPStore.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "exec/communicator.h"

namespace perigee::exec {

struct GlooOptions {
  std::string host = "127.0.0.1";  // of the store
  uint16_t port = 0;
  int64_t rank = 0;
  int64_t world = 1;
  bool serve = false;  // this process runs the store: rank 0, unless the launcher does
  // An open socket that listens on the port (the store takes it over), or -1. Avoids races for a
  // free port.
  int listen_socket = -1;
  std::chrono::milliseconds timeout =
      std::chrono::minutes(5);  // of rendezvous and of one collective
};

// Returns this rank's communicator once all ranks have come. Collectives of a group run one after
// the other on a thread of their own, beside the computation. Throws Error when the ranks do not
// meet within the time-out.
std::unique_ptr<Communicator> gloo_communicator(const GlooOptions& options);

// Returns a listening socket on a free port of the loopback interface (or of all interfaces), and
// the port.
struct ListeningSocket {
  int socket = -1;
  uint16_t port = 0;
};
ListeningSocket listen_on_free_port(bool all_interfaces = false);

}  // namespace perigee::exec
