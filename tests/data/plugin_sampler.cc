// A sampler library as a user writes it: each sample once an epoch, in descending order, starting
// in epoch k at the k-th last sample. With seeds from 1000 on it violates the contract.
#include <cstdint>

extern "C" int64_t perigee_sampler(int64_t sample, int64_t count, uint64_t seed) {
  if (seed >= 1000) return count;
  const int64_t epoch = sample / count;
  return (2 * count - 1 - sample % count - epoch % count) % count;
}
