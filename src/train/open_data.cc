#include "train/data.h"
#include "train/permutation.h"

namespace perigee::train {

Data open_data(const job::Job& job) {
  if (!job.data.text.empty() || !job.data.tokens.empty()) return open_tokens(job);
  if (!job.data.tensors.empty()) return open_tensors(job);
  return open_synthetic(job);
}

int64_t shuffled(int64_t sample, int64_t count, uint64_t seed) {
  // A permutation uses the keys next to its own, so epochs and seeds lie far apart.
  const uint64_t epoch = static_cast<uint64_t>(sample / count);
  const uint64_t key = seed * 0x9e3779b97f4a7c15 ^ epoch * 0xbf58476d1ce4e5b9;
  return static_cast<int64_t>(Permutation(count, key)(sample % count));
}

}  // namespace perigee::train
