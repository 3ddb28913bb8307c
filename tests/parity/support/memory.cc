#include "tests/parity/support/memory.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>

namespace perigee::parity {
namespace {

struct Count {
  int64_t now = 0, peak = 0;
  int generation = 0;
  void add(int64_t bytes) {
    now += bytes;
    peak = std::max(peak, now);
  }
};

struct Owned {
  int64_t bytes = 0;
  int owner = -1, generation = 0;
};

std::mutex mutex;
std::map<int, Count> counts;  // by owner
Count total;
std::unordered_map<void*, Owned> held;
thread_local int owner_of_thread = -1;

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* upstream) : upstream_(upstream) { instance = this; }

  c10::DataPtr allocate(size_t bytes) override {
    auto given = upstream_->allocate(bytes);
    void* address = given.release_context();
    if (address) {
      std::lock_guard lock(mutex);
      Owned owned{static_cast<int64_t>(bytes), owner_of_thread, 0};
      if (owned.owner >= 0) {
        auto& count = counts[owned.owner];
        owned.generation = count.generation;
        count.add(owned.bytes);
      }
      total.add(owned.bytes);
      held[address] = owned;
    }
    return {address, address, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* address) {
    if (!address) return;
    {
      std::lock_guard lock(mutex);
      const auto found = held.find(address);
      if (found != held.end()) {
        const auto [bytes, owner, generation] = found->second;
        held.erase(found);
        total.now -= bytes;
        if (owner >= 0 && counts[owner].generation == generation) counts[owner].now -= bytes;
      }
    }
    instance->upstream_->raw_deleter()(address);
  }

  static CountingAllocator* instance;
  c10::Allocator* upstream_;
};

CountingAllocator* CountingAllocator::instance = nullptr;

// Installed before any allocation, so that Perigee's allocator wraps this one as LibTorch's.
[[maybe_unused]] const bool installed = [] {
  c10::SetCPUAllocator(new CountingAllocator(c10::GetCPUAllocator()), /*priority=*/50);
  return true;
}();

}  // namespace

void count_memory_for(int owner) {
  std::lock_guard lock(mutex);
  owner_of_thread = owner;
  auto& count = counts[owner];
  count = {0, 0, count.generation + 1};
}

void reset_counted_peak(int owner) {
  std::lock_guard lock(mutex);
  counts[owner].peak = counts[owner].now;
}

int64_t counted_peak(int owner) {
  std::lock_guard lock(mutex);
  return counts[owner].peak;
}

void reset_counted_peak() {
  std::lock_guard lock(mutex);
  total.peak = total.now;
}

int64_t counted_peak() {
  std::lock_guard lock(mutex);
  return total.peak;
}

int64_t counted_now() {
  std::lock_guard lock(mutex);
  return total.now;
}

}  // namespace perigee::parity
