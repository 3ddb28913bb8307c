// The cluster that a job is planned for.
#pragma once

#include <cstdint>
#include <string>

#include "cost/cluster.h"
#include "job/job.h"

namespace perigee::train {

// The ranks of a plan, and the hosts that they are on where this process has no launcher.
struct HostedRanks {
  int64_t count = 1;
  int64_t hosts = 1;
};

// Returns how many of the ranks are on a host, at most: by this process's launcher
// (job::ranks_of_host), else by the number of hosts.
int64_t ranks_per_host(const HostedRanks& ranks);

// Returns the description that cluster.file names; else that of as many hosts like this machine as
// the ranks are on: of its CPU, or the description of its kind of GPU that is shipped (below
// `runtime_folder`), or default values, which the network between hosts always has. Throws Error
// where a named cluster has too few ranks.
cost::Cluster cluster_of(const job::Job& job, const HostedRanks& ranks,
                         const std::string& runtime_folder);

// Returns PlanRequest::sharing_ranks of a job of these ranks; 1 for a described cluster.
int64_t sharing_ranks(const job::Job& job, const HostedRanks& ranks);

// Returns the bytes of a GPU of so many bytes that a plan may use: CUDA's context, the code of
// kernels and the workspaces of cuBLAS, cuDNN and NCCL need the rest.
double memory_for_plans(int64_t gpu_bytes);

// Returns the bytes of this machine's memory that the process may use (usable_memory).
double memory_of_host();

// Returns whether all of the job's devices have native products of eight-bit floats: with
// `for_described_cluster` those of cluster.file, where it is set (`peak` has float8_e4m3), else
// this machine's.
bool multiplies_eight_bits(const job::Job& job, bool for_described_cluster,
                           const std::string& runtime_folder);

}  // namespace perigee::train
