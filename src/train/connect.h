// What a rank computes on and how it meets the others.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/communicator.h"
#include "exec/device.h"
#include "job/job.h"
#include "job/place.h"

namespace perigee::train {

// One rank's device, and its ways to the other ranks. On the CPU both ways are one.
struct Connection {
  std::shared_ptr<exec::Device> device;
  std::shared_ptr<exec::Communicator> communicator;  // of tensors on the host
  std::shared_ptr<exec::Communicator> tensors;       // of tensors on the device
  int64_t local_ranks = 1;                           // on this rank's host
};

// Returns whether the job's ranks compute on GPUs: as cluster.device says, and where it leaves that
// open, whether this process has a GPU and Perigee's CUDA part. Opens that part, so call it before
// LibTorch is asked for CUDA. Not before a fork. `tell`: warn of a GPU that cannot be used.
bool uses_gpu(const job::Job& job, bool tell = true);

// Opens what the job's device may need where this machine has a GPU, before a model is captured or
// anything else asks LibTorch for CUDA. What fails here is said by those who need it.
void prepare_device(const job::Job& job);

// Returns how many ranks the job has where nothing else says it: one for each of cluster.devices;
// or for each GPU that this process may use where it computes on GPUs; else 1. Asks the system and
// not CUDA, which forked ranks could not use after their parent has.
int64_t default_ranks(const job::Job& job);

// Returns which of the host's GPUs its ranks take: those of cluster.devices, else all. Throws Error
// for one that the host does not have.
std::vector<int64_t> usable_gpus(const job::Cluster& cluster, int64_t found);

// Returns which of these GPUs the rank takes: one for each rank, or the only one for all of
// them. Throws Error where there are several, but fewer than ranks.
int gpu_of_rank(int64_t gpus, const job::RankPlace& place);

// Returns the device of a rank of its own, without other ranks. Throws Error when cluster.device
// cannot be had, saying what is missing.
std::shared_ptr<exec::Device> open_device(const job::Job& job);

// Returns the rank's connection once all have come; alone, without a network. Ranks with a GPU each
// exchange what lies there by NCCL; ranks that share one, by way of the host. Throws Error when the
// ranks do not meet within cluster.timeout, or as open_device.
Connection connect(const job::Job& job, const job::RankPlace& place);

// Returns the connections of `count` ranks that are threads of this process.
std::vector<Connection> connect_threads(const job::Job& job, int64_t count);

}  // namespace perigee::train
