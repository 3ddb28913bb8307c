// Orders of training samples: data.sampler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "job/job.h"

namespace perigee::data {

// Returns the index in [0, count) of the run's sample number `sample` (from 0). A pure function,
// hence resumable and the same for every number of ranks. Throws Error for a library whose function
// returns an index out of range.
using Sampler = std::function<int64_t(int64_t sample, int64_t count)>;

// Returns the job's sampler, for one of several sources: their orders differ. Throws Error for a
// library that cannot be opened, exports no sampler, or exports other versions
// (PERIGEE_PLUGIN_VERSIONS, capture/capture.h).
Sampler make_sampler(const job::Job& job, size_t source = 0);

// In order, repeatedly: the order of held-out samples.
int64_t sequential(int64_t sample, int64_t count);

// A permutation in each epoch: sample i is permutation(epoch, i mod count).
// `buffer`: samples that are permuted with each other, consecutive ones; 0: all.
int64_t shuffled(int64_t sample, int64_t count, uint64_t seed, int64_t buffer = 0);

}  // namespace perigee::data
