// Ranks as processes: those of one host exchange tensors through shared memory, others by Gloo.
#pragma once

#include <cstdint>
#include <memory>

#include "exec/comm/communicator.h"
#include "exec/comm/rendezvous.h"
#include "exec/memory/shared_memory.h"

namespace perigee::exec {

struct ProcessOptions {
  enum class Carrier : uint8_t {
    automatic,  // shared memory for a group on one host, else Gloo
    shared,     // an error for a group that cannot share memory
    gloo,
  };
  RendezvousOptions rendezvous;
  Carrier carrier = Carrier::automatic;
  int64_t local_ranks = 1;  // of this host
  int64_t threads = 1;      // of a rank's compute
  // Operands that lie in it are read and written where they are; others are copied to it and from
  // it. nullptr: the communicator opens its own.
  std::shared_ptr<SharedMemory> memory;
};

// Returns this rank's communicator after all ranks have joined. A group shares memory where each
// pair of its processes has proven to be on one host: each maps the other's memory and finds the
// number there that came through the job's store. Otherwise a line of the log says why it uses
// Gloo. Throws Error when the ranks do not join within the time-out.
std::unique_ptr<Communicator> process_communicator(ProcessOptions options);

}  // namespace perigee::exec
