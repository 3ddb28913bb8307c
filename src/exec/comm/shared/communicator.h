// Ranks as processes: those of one host exchange tensors through shared memory, those of different
// hosts by Gloo.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "exec/comm/communicator.h"
#include "exec/comm/rendezvous.h"
#include "exec/memory/shared_memory.h"

namespace perigee::exec {

struct ProcessOptions {
  enum class Carrier : uint8_t {
    automatic,  // shared memory within hosts, Gloo between hosts
    shared,     // an error for a group whose ranks cannot all share memory
    gloo,
  };
  RendezvousOptions rendezvous;
  Carrier carrier = Carrier::automatic;
  int64_t local_ranks = 1;  // of this host
  int64_t threads = 1;      // of a rank's compute
  // Operands that lie in it are read and written where they are; others are copied to it and from
  // it. nullptr: the communicator opens its own.
  std::shared_ptr<SharedMemory> memory;
  std::string host;  // tests: takes the place of this host's name, without blanks
};

// Returns this rank's communicator after all ranks have joined. A group shares memory where each
// pair of its processes has proven to be on one host: each maps the other's memory and finds the
// number there that came through the job's store. A group over several hosts, of which one has two
// or more ranks, shares memory within each host (over_hosts.h). Other groups use Gloo; where that is
// not due to their hosts, a line of the log says why. Throws Error when the ranks do not join within
// the time-out.
std::unique_ptr<Communicator> process_communicator(ProcessOptions options);

}  // namespace perigee::exec
