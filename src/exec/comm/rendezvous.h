// How the processes of a job find each other and learn that one has failed: c10d's TCPStore.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace perigee::exec {

struct RendezvousOptions {
  std::string host = "127.0.0.1";  // of the store
  uint16_t port = 0;
  int64_t rank = 0;
  int64_t world = 1;
  bool serve = false;  // this process runs the store: rank 0, unless the launcher does
  // An open socket that listens on the port (the store takes it over), or -1. Avoids races for a
  // free port.
  int listen_socket = -1;
  std::chrono::milliseconds timeout = std::chrono::minutes(
      5);  // of rendezvous and of one collective

  double seconds() const { return std::chrono::duration<double>(timeout).count(); }
};

using Store = c10::intrusive_ptr<c10d::Store>;

// Returns the job's store once all ranks have come. Throws Error, naming who is missing, when they
// do not meet within the time-out.
Store meet(const RendezvousOptions& options);

// Leaves the reason of this rank's failure for the others; the first one stays. Takes at
// most 0.3 s.
void leave_failure(c10d::Store& store, int64_t rank, const std::string& reason);

// Returns the reason that a failing rank left, or "". Asks the network.
std::string left_failure(c10d::Store& store);

// Returns the reason that a failing rank left, or what this rank saw. Takes at most a second.
std::string failure_or(c10d::Store& store, const std::string& seen);

// The same after a transfer among `ranks` failed. Where no rank left a reason, those that do not
// soon say that they miss the others, too, are named instead of what was seen: they do not answer.
std::string failure_among(c10d::Store& store, int64_t rank, const std::vector<int64_t>& ranks,
                          const std::string& seen);

// Returns an exception's first line, without LibTorch's backtrace.
std::string first_line(const std::exception& error);

// Returns a listening socket on a free port of the loopback interface (or of all interfaces), and
// the port.
struct ListeningSocket {
  int socket = -1;
  uint16_t port = 0;
};
ListeningSocket listen_on_free_port(bool all_interfaces = false);

}  // namespace perigee::exec
