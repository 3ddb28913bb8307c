// The device that a rank computes on.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exec/device.h"
#include "job/job.h"
#include "job/place.h"

namespace perigee::train {

// Returns whether the job's ranks compute on GPUs: as cluster.device specifies; where that is
// not set, whether this process has a GPU and perigee_cuda. Opens perigee_cuda, so call it before
// LibTorch is asked for CUDA, and not before a fork. `warn`: log why a GPU that is present cannot
// be used.
bool uses_gpu(const job::Job& job, bool warn = true);

// Opens perigee_cuda where the job may use it and this machine has a GPU, before a model is
// captured or LibTorch is asked for CUDA. Errors are left to the functions that need the GPU.
void prepare_device(const job::Job& job);

// Returns how many ranks the job has by default: one for each of cluster.devices; or for each GPU
// that this process may use where it computes on GPUs; else 1. Asks the system and not CUDA, which
// forked ranks could not use after their parent has.
int64_t default_ranks(const job::Job& job);

// Returns which of the host's GPUs its ranks take: those of cluster.devices, else all. Throws Error
// for one that the host does not have.
std::vector<int64_t> usable_gpus(const job::ClusterConfig& cluster, int64_t found);

// Returns which of these GPUs the rank takes: one for each rank, or the only one for all of them.
// Throws Error where there are several, but fewer than ranks.
int gpu_of_rank(int64_t gpus, const job::RankPlace& place);

// Returns the GPU of the rank at `place`. Throws Error as usable_gpus and gpu_of_rank.
std::shared_ptr<exec::Device> open_gpu(const job::Job& job, const job::RankPlace& place);

// Returns the device of a single rank. Throws Error naming the missing part when cluster.device
// cannot be opened.
std::shared_ptr<exec::Device> open_device(const job::Job& job);

}  // namespace perigee::train
