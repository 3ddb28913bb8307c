// The cluster that a job is planned for.
#pragma once

#include <cstdint>
#include <string>

#include "cost/cluster.h"
#include "job/job.h"

namespace perigee::train {

// Returns the description that cluster.file names; else this machine's: its CPU, or the shipped
// description (below `runtime_folder`) of a GPU of its kind, for so many ranks. Throws Error where
// a named cluster has too few ranks, or none is shipped for the machine's GPU.
cost::Cluster cluster_of(const job::Job& job, int64_t ranks, const std::string& runtime_folder);

// Returns the bytes of this machine's memory.
double memory_of_host();

// Returns whether all of the job's devices multiply eight-bit floats themselves: those of the
// cluster that cluster.file names where a plan is `foretold` for it (`peak` has float8_e4m3), else
// this machine's.
bool multiplies_eight_bits(const job::Job& job, bool foretold, const std::string& runtime_folder);

}  // namespace perigee::train
