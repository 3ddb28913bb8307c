#include "data/sampler.h"

#include <dlfcn.h>

#include <algorithm>
#include <memory>

#include "base/fail.h"
#include "capture/plugin_version.h"
#include "data/permutation.h"
#include "exec/ops/random.h"

namespace perigee::data {
namespace {

// Draws with replacement, by 64 random bits of (seed, sample).
int64_t drawn(int64_t sample, int64_t count, uint64_t seed) {
  constexpr uint32_t kPurpose = 4;  // distinct from those of synthetic samples
  const auto number = static_cast<uint64_t>(sample);
  const auto words = exec::philox(
      {0, static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32), kPurpose},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const auto bits = static_cast<uint64_t>(words[0]) << 32 | words[1];
  return static_cast<int64_t>(bits % static_cast<uint64_t>(count));
}

Sampler open_library(const std::string& path, uint64_t seed) {
  // Without a slash the loader would search the system's folders.
  const auto file = path.find('/') == std::string::npos ? "./" + path : path;
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays loaded
  if (!library) fail("data", "data.sampler must be a library, but \"{}\": {}", path, dlerror());
  using Place = int64_t (*)(int64_t, int64_t, uint64_t);
  const auto place = reinterpret_cast<Place>(dlsym(library, "perigee_sampler"));
  if (!place) {
    fail("data",
         "a sampler's library exports int64_t perigee_sampler(int64_t sample, int64_t count, "
         "uint64_t seed), but \"{}\" does not",
         path);
  }
  has_plugin_versions(library, path);  // throws; its own interface is C, the same for all versions
  return [place, path, seed](int64_t sample, int64_t count) {
    const auto found = place(sample, count, seed);
    if (found < 0 || found >= count) {
      fail_run("data", "{} must give sample {} an index below {}, but got {}", path, sample, count,
               found);
    }
    return found;
  };
}

}  // namespace

int64_t sequential(int64_t sample, int64_t count) { return sample % count; }

int64_t shuffled(int64_t sample, int64_t count, uint64_t seed, int64_t buffer) {
  // A permutation uses the keys next to its own, so epochs and seeds lie far apart.
  const uint64_t epoch = static_cast<uint64_t>(sample / count);
  uint64_t key = seed * 0x9e3779b97f4a7c15 ^ epoch * 0xbf58476d1ce4e5b9;
  const auto within = sample % count;
  if (buffer == 0 || buffer >= count) {
    return static_cast<int64_t>(Permutation(count, key)(within));
  }
  const auto begin = within / buffer * buffer;
  key ^= static_cast<uint64_t>(begin) * 0x94d049bb133111eb;
  const auto size = std::min(buffer, count - begin);
  return begin + static_cast<int64_t>(Permutation(size, key)(within - begin));
}

Sampler make_sampler(const job::Job& job, size_t source) {
  const auto seed = static_cast<uint64_t>(job.seed) + source * 0x9e3779b97f4a7c15;
  const auto& name = job.data.sampler;
  if (name == "sequential") return sequential;
  if (name == "random") {
    return [seed](int64_t sample, int64_t count) { return drawn(sample, count, seed); };
  }
  if (name == "shuffle") {
    return [seed, buffer = job.data.shuffle_buffer](int64_t sample, int64_t count) {
      return shuffled(sample, count, seed, buffer);
    };
  }
  return open_library(name, seed);
}

}  // namespace perigee::data
