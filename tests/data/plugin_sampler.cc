// A sampler's library, as a user writes one: every sample once an epoch, backwards, in epoch k from
// the k-th last on. From the seed 1000 on it is wrong.
#include <cstdint>

extern "C" int64_t perigee_sampler(int64_t sample, int64_t count, uint64_t seed) {
  if (seed >= 1000) return count;
  const int64_t epoch = sample / count;
  return (2 * count - 1 - sample % count - epoch % count) % count;
}
