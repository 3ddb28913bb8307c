#include "exec/memory/allocator.h"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>

#include "base/fail.h"
#include "base/log_once.h"
#include "exec/memory/shared_memory.h"

namespace perigee::exec {
namespace {

// ---- the address ranges of arenas: every deallocation reads them, so without a lock

struct Extent {
  const std::byte* begin;
  const std::byte* end;
};

constexpr size_t kMostArenas = 1024;
// An entry is a pointer that is replaced atomically; its object is neither changed nor freed, so
// that a reader always sees a consistent one.
std::array<std::atomic<const Extent*>, kMostArenas> arenas{};
std::atomic<size_t> arena_slots{0};
std::mutex arena_mutex;

size_t register_arena(const std::byte* begin, int64_t bytes) {
  static auto* extents = new std::deque<Extent>();
  std::lock_guard lock(arena_mutex);
  for (size_t slot = 0; slot < kMostArenas; ++slot) {
    if (arenas[slot].load() != nullptr) continue;
    arenas[slot].store(&extents->emplace_back(begin, begin + bytes));
    arena_slots.store(std::max(arena_slots.load(), slot + 1));
    return slot;
  }
  fail_run("exec", "a process can hold {} programs at a time, but got one more", kMostArenas);
}

bool in_arena(const void* address) {
  const auto* byte = static_cast<const std::byte*>(address);
  const size_t slots = arena_slots.load(std::memory_order_acquire);
  for (size_t slot = 0; slot < slots; ++slot) {
    const auto* extent = arenas[slot].load(std::memory_order_acquire);
    if (extent && byte >= extent->begin && byte < extent->end) return true;
  }
  return false;
}

// ---- counters

std::atomic<int64_t> arena_bytes{0}, other_bytes{0}, peak_bytes{0}, host_bytes{0};
std::atomic<int64_t> shared_bytes{0};  // of arena_bytes: in shared memory

void count(std::atomic<int64_t>& counter, int64_t bytes) {
  counter.fetch_add(bytes, std::memory_order_relaxed);
  const int64_t sum = arena_bytes.load(std::memory_order_relaxed) +
                      other_bytes.load(std::memory_order_relaxed);
  int64_t peak = peak_bytes.load(std::memory_order_relaxed);
  while (sum > peak && !peak_bytes.compare_exchange_weak(peak, sum)) {
  }
}

// ---- state of this thread

struct Plan {
  const compile::Allocation* allocations = nullptr;
  size_t count = 0, next = 0;
  std::byte* const* bases = nullptr;
  bool active = false;
};

thread_local Plan plan;
thread_local RecordedAllocations* recording = nullptr;

}  // namespace

struct AllocatorAccess {
  static auto& entries(RecordedAllocations& r) { return r.entries_; }
};

namespace {

// ---- the allocator

class PlannedAllocator final : public c10::Allocator {
 public:
  explicit PlannedAllocator(c10::Allocator* upstream)
      : upstream_(upstream), delete_(upstream->raw_deleter()) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (plan.active && bytes > 0) return wrap(planned(static_cast<int64_t>(bytes)));
    if (bytes > 0 && is_served_worker()) return wrap(serve_worker(static_cast<int64_t>(bytes)));
    auto given = upstream_->allocate(bytes);
    void* address = given.get();
    if (given.get_context() != address) {
      fail_run("exec",
               "LibTorch's CPU allocator must give plain memory, but another one was installed "
               "that does not");
    }
    given.release_context();
    if (address) {
      count(other_bytes, static_cast<int64_t>(malloc_usable_size(address)));
      if (recording) {
        AllocatorAccess::entries(*recording)
            .push_back({.address = address, .bytes = static_cast<int64_t>(bytes)});
      }
      record_worker(address, static_cast<int64_t>(bytes));
    }
    return wrap(address);
  }

  c10::DeleterFnPtr raw_deleter() const override { return &PlannedAllocator::release; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  c10::Allocator* upstream() const { return upstream_; }
  static PlannedAllocator* instance;

 private:
  static c10::DataPtr wrap(void* address) {
    return {address, address, &release, c10::Device(c10::kCPU)};
  }

  // Frees planned and other addresses: oneDNN returns both through this function.
  static void release(void* address) {
    if (!address) return;
    release_worker(address);
    if (in_arena(address)) return;
    other_bytes.fetch_sub(static_cast<int64_t>(malloc_usable_size(address)),
                          std::memory_order_relaxed);
    if (recording) {
      auto& entries = AllocatorAccess::entries(*recording);
      for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
        if (entry->address != address || entry->freed_at >= 0) continue;
        entry->freed_at = static_cast<int64_t>(entries.size());
        break;
      }
    }
    instance->delete_(address);
  }

  static void* planned(int64_t bytes) {
    if (plan.next >= plan.count) {
      fail_run("exec",
               "the op must make {} allocations, as when its trace was recorded, but makes one "
               "more of {} bytes",
               plan.count, bytes);
    }
    const auto& next = plan.allocations[plan.next++];
    if (next.bytes != bytes) {
      fail_run(
          "exec",
          "allocation {} of the op must have {} bytes, as when its trace was recorded, but has {}",
          plan.next, next.bytes, bytes);
    }
    return plan.bases[next.place.frame] + next.place.offset;
  }

  c10::Allocator* upstream_;
  c10::DeleterFnPtr delete_;
};

PlannedAllocator* PlannedAllocator::instance = nullptr;

}  // namespace

void install_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    auto* upstream = c10::GetCPUAllocator();
    if (!upstream->raw_deleter()) {
      fail_run("exec",
               "LibTorch's CPU allocator must give plain memory, but another one was installed "
               "that does not");
    }
    // Lives as long as the process: tensors of static lifetime point to it.
    PlannedAllocator::instance = new PlannedAllocator(upstream);
    c10::SetCPUAllocator(PlannedAllocator::instance, /*priority=*/100);
  });
}

namespace {

// Returns zeroed memory of this process, or nullptr where there is not enough.
std::shared_ptr<std::byte> private_memory(int64_t bytes) {
  c10::DataPtr memory;
  try {
    memory = PlannedAllocator::instance->upstream()->allocate(
        static_cast<size_t>(std::max<int64_t>(bytes, 64)));
  } catch (const c10::Error&) {
    return nullptr;
  }
  auto* begin = static_cast<std::byte*>(memory.get());
  // Large pages where the system gives them: fewer misses on big frames.
  const auto page = reinterpret_cast<uintptr_t>(begin + 4095) & ~uintptr_t{4095};
  const auto room = bytes - static_cast<int64_t>(page - reinterpret_cast<uintptr_t>(begin));
  if (room >= int64_t{1} << 21) {
    madvise(reinterpret_cast<void*>(page), static_cast<size_t>(room / 4096 * 4096), MADV_HUGEPAGE);
  }
  std::memset(begin, 0, static_cast<size_t>(bytes));
  const auto owner = std::make_shared<c10::DataPtr>(std::move(memory));
  return {owner, begin};
}

std::shared_ptr<std::byte> shared_memory(int64_t bytes, SharedMemory& shared) {
  try {
    return shared.allocate(bytes);
  } catch (const Error& error) {
    log::once(log::Level::warn,
              fmt::format("collectives copy their operands, which are in private memory: {}",
                          error.what()));
    return nullptr;
  }
}

}  // namespace

std::shared_ptr<std::byte> allocate_frames(int64_t bytes, SharedMemory* shared) {
  install_allocator();
  struct Frames {
    std::shared_ptr<std::byte> memory;
    int64_t bytes = 0, shared_bytes = 0;
    std::optional<size_t> slot;

    ~Frames() {
      if (slot) arenas[*slot].store(nullptr);
      arena_bytes.fetch_sub(bytes);
      exec::shared_bytes.fetch_sub(shared_bytes);
    }
  };
  auto frames = std::make_shared<Frames>();
  if (shared && bytes > 0) frames->memory = shared_memory(bytes, *shared);
  const bool in_shared = frames->memory != nullptr;
  if (!in_shared) frames->memory = private_memory(bytes);
  if (!frames->memory) {
    fail_run("exec", "the program's frames need {} bytes of memory, but less is free", bytes);
  }
  auto* begin = frames->memory.get();
  frames->slot = register_arena(begin, bytes);
  frames->bytes = bytes;
  frames->shared_bytes = in_shared ? bytes : 0;
  exec::shared_bytes.fetch_add(frames->shared_bytes);
  count(arena_bytes, bytes);
  return {frames, begin};
}

std::shared_ptr<std::byte> allocate_uncounted(int64_t bytes) {
  install_allocator();
  return private_memory(bytes);
}

std::shared_ptr<std::byte> counted_frames(std::shared_ptr<std::byte> memory, int64_t bytes,
                                          bool shared) {
  const int64_t outside = shared ? bytes : 0;
  shared_bytes.fetch_add(outside);
  count(arena_bytes, bytes);
  auto* begin = memory.get();
  return {begin, [memory = std::move(memory), bytes, outside](std::byte*) {
            arena_bytes.fetch_sub(bytes);
            shared_bytes.fetch_sub(outside);
          }};
}

std::shared_ptr<std::byte> allocate_host_frames(int64_t bytes) {
  const auto rounded = static_cast<size_t>(std::max<int64_t>(bytes, 64) + 63) / 64 * 64;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(64, rounded));
  if (!memory) {
    fail_run("exec", "offloading needs {} bytes of the host's memory, but less is free", bytes);
  }
  std::memset(memory, 0, rounded);
  host_bytes.fetch_add(bytes);
  return {memory, [bytes](std::byte* p) {
            std::free(p);
            host_bytes.fetch_sub(bytes);
          }};
}

PlannedAllocations::PlannedAllocations(std::span<const compile::Allocation> allocations,
                                       std::span<std::byte* const> bases, int64_t worker_bytes) {
  auto own = allocations;
  if (worker_bytes > 0) {
    const auto& [bytes, place, until] = allocations.front();
    own = allocations.subspan(1);
    workers_.emplace(bases[place.frame] + place.offset, worker_bytes);
    if (workers_->count() * worker_bytes > bytes) {
      fail_run("exec",
               "the op must run on as many threads as when its trace was recorded, but has {}",
               workers_->count() + 1);
    }
  }
  plan = {own.data(), own.size(), 0, bases.data(), true};
}

PlannedAllocations::~PlannedAllocations() { plan.active = false; }

void PlannedAllocations::check_all_made() const {
  if (plan.next != plan.count) {
    fail_run("exec", "the op must make {} allocations, as when its trace was recorded, but made {}",
             plan.count, plan.next);
  }
}

RecordedAllocations::RecordedAllocations() {
  install_allocator();
  recording = this;
}

RecordedAllocations::~RecordedAllocations() { recording = nullptr; }

MemoryCount memory_count() {
  return {arena_bytes.load(), other_bytes.load(), peak_bytes.load(), host_bytes.load()};
}

int64_t library_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("RssAnon:")) continue;
    const int64_t resident = std::atoll(line.c_str() + 8) << 10;
    const auto counted = memory_count();
    const int64_t own_arenas = counted.arenas - shared_bytes.load();
    return std::max<int64_t>(0, resident - own_arenas - counted.others - counted.host);
  }
  return 0;
}

void reset_peak() { peak_bytes.store(arena_bytes.load() + other_bytes.load()); }

}  // namespace perigee::exec
