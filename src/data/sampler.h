// Orders of training samples: data.sampler.
#pragma once

#include <cstdint>
#include <functional>

#include "job/job.h"

namespace perigee::data {

// Returns the place in [0, count) of a sample, of which the run's are numbered from 0. A pure
// function, hence resumable and the same for every number of ranks. Throws Error for a library
// whose function answers with another place.
using Sampler = std::function<int64_t(int64_t sample, int64_t count)>;

// Returns the job's. Throws Error for a library that cannot be opened or exports no sampler.
Sampler make_sampler(const job::Job& job);

// In order, again and again: what held-back samples have.
int64_t sequential(int64_t sample, int64_t count);

// Every sample once an epoch: sample i is permutation(epoch, i mod count).
int64_t shuffled(int64_t sample, int64_t count, uint64_t seed);

}  // namespace perigee::data
