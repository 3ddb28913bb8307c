// What carries tensors between ranks, by the keys of the job.
#pragma once

#include "exec/comm/select.h"
#include "exec/comm/shared/communicator.h"
#include "job/job.h"

namespace perigee::train {

// Returns what carries messages between stages: cluster.messages.
inline exec::Messages messages_of(const job::Job& job) {
  return job.cluster.messages == "gloo" ? exec::Messages::by_host : exec::Messages::by_device;
}

// Returns what carries tensors in the hosts' memory between processes: cluster.communicator.
inline exec::ProcessOptions::Carrier carrier_of(const job::Job& job) {
  using Carrier = exec::ProcessOptions::Carrier;
  if (job.cluster.communicator == "gloo") return Carrier::gloo;
  return job.cluster.communicator == "shared" ? Carrier::shared : Carrier::automatic;
}

}  // namespace perigee::train
