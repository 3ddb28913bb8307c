// A rank's device and its connections to the other ranks.
#pragma once

#include <memory>
#include <vector>

#include "exec/comm/agreement.h"
#include "exec/comm/communicator.h"
#include "exec/device.h"
#include "job/job.h"
#include "job/place.h"

namespace perigee::train {

// On the CPU both communicators are the same.
struct Connection {
  std::shared_ptr<exec::Device> device;
  std::shared_ptr<exec::Communicator> communicator;  // of tensors on the host
  std::shared_ptr<exec::Communicator> tensors;       // of tensors on the device
  int64_t local_ranks = 1;                           // on this rank's host
};

// Returns the rank's connection once all ranks have called it; a single rank needs no network.
// Ranks with a GPU each exchange tensors by NCCL; ranks that share one GPU, through the host.
// `settings` are compared with rank 0's, beside the job's own. Throws Error when they differ, when the
// ranks do not meet within cluster.timeout, or as open_device.
Connection connect(const job::Job& job, const job::RankPlace& place,
                   const exec::Settings& settings = {});

// Returns the connections of `count` ranks that are threads of this process.
std::vector<Connection> connect_threads(const job::Job& job, int64_t count);

}  // namespace perigee::train
