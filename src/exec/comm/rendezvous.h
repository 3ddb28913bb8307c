// Rendezvous of the processes of a job, and the report of failures among them, over the job's
// store (job_store.h).
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "exec/comm/agreement.h"

namespace perigee::exec {

struct RendezvousOptions {
  std::string host = "127.0.0.1";  // of the store
  int port = 0;
  int64_t rank = 0;
  int64_t world = 1;
  bool serve = false;  // this process runs the store: rank 0
  // With `serve`: a socket that listens on the port (listen_at), which the store takes over; opened
  // before, so that no other program takes the port.
  int listen_socket = -1;
  // Of the job: only processes that know it join. "": anybody who reaches the port does.
  std::string secret;
  // Of rendezvous and of one collective.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);

  // This host's network interface for transfers between ranks ("eth0"); "": the one with the route
  // to the store.
  std::string interface;
  // Settings that all ranks must share; compared with rank 0's before a rank joins.
  Settings settings;
  // The prefix of the store's keys: a second meeting of the same ranks has another.
  std::string name = "job";

  double seconds() const { return std::chrono::duration<double>(timeout).count(); }
};

using Store = c10::intrusive_ptr<c10d::Store>;

struct Meeting {
  Store store;
  // This host's numeric address under which the other ranks reach it: of `interface`, else of the
  // route to the store. On the store's host, whose own name may resolve to a loopback address, the
  // address to which the other hosts connected.
  std::string address;
};

// Returns the job's store and this rank's address once all ranks have joined. Throws Error when
// they do not join within the time-out, naming who is missing; with Status::invalid, on all ranks,
// when a rank's settings differ from rank 0's or two processes have the same rank.
Meeting meet(const RendezvousOptions& options);

// Writes the reason of this rank's failure to the store, unless another rank has written one. Takes
// at most 0.3 s.
void leave_failure(c10d::Store& store, int64_t rank, const std::string& reason);

// Returns the reason that a failed rank wrote, or "". May block on the network.
std::string left_failure(c10d::Store& store);

// Returns the reason that a failed rank wrote, else `seen`, this rank's own error. Takes at
// most a second.
std::string failure_or(c10d::Store& store, const std::string& seen);

// As failure_or, after a transfer among `ranks` failed. If no rank wrote a reason, each rank that
// reports its own failed transfer within 0.8 s is alive; the text names the others as
// not answering.
std::string failure_among(c10d::Store& store, int64_t rank, const std::vector<int64_t>& ranks,
                          const std::string& seen);

// Returns an exception's first line, without LibTorch's backtrace.
std::string first_line(const std::exception& error);

}  // namespace perigee::exec
