// Planned memory. LibTorch's ops allocate inside; while a plan stands on a thread, its n-th
// allocation is served at its planned address. Installed once over LibTorch's CPU allocator;
// threads without a plan notice nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "compile/program.h"
#include "exec/memory/workers.h"

namespace perigee::exec {

// Makes planned memory possible in this process. Safe to repeat. Tensors made before stay valid.
void install_allocator();

// Returns zeroed memory for a program's frames, 64-byte aligned: planned allocations may be served
// in it. Throws Error when there is not enough.
std::shared_ptr<std::byte> allocate_frames(int64_t bytes);

// Returns zeroed memory, 64-byte aligned, for what is kept off the device; LibTorch's allocations
// and memory_count()'s peak know nothing of it. Throws Error when there is not enough.
std::shared_ptr<std::byte> allocate_host_frames(int64_t bytes);

// Serves this thread's allocations at their places until it ends. Do not nest.
class PlannedAllocations {
 public:
  // With `worker_bytes`, the first of them is the workers' memory, so many bytes
  // for each (compile::Instruction).
  PlannedAllocations(std::span<const compile::Allocation> allocations,
                     std::span<std::byte* const> bases, int64_t worker_bytes = 0);
  ~PlannedAllocations();
  PlannedAllocations(const PlannedAllocations&) = delete;

  // Throws Error unless all of them were made. An allocation of another size, or one too many,
  // throws where it is made.
  void check_all_made() const;

 private:
  std::optional<Workers> workers_;
};

// Records this thread's allocations and which of them end when, and what its workers hold.
class RecordedAllocations {
 public:
  RecordedAllocations();
  ~RecordedAllocations();
  RecordedAllocations(const RecordedAllocations&) = delete;

  struct Entry {
    const void* address = nullptr;
    int64_t bytes = 0;
    // How many allocations had been made when this one ended; -1: it is still there.
    int64_t freed_at = -1;
  };
  const std::vector<Entry>& entries() const { return entries_; }
  const Workers& workers() const { return workers_; }

 private:
  friend struct AllocatorAccess;
  std::vector<Entry> entries_;
  Workers workers_;
};

// Bytes of LibTorch's CPU allocations outside of arenas, over the process; counted from
// install_allocator() on.
struct MemoryCount {
  int64_t arenas = 0;  // now
  int64_t others = 0;  // now: batches, results of ops without a recorded trace
  int64_t peak = 0;    // of arenas + others since reset_peak()
  int64_t host = 0;    // now: of allocate_host_frames
};
MemoryCount memory_count();
void reset_peak();

// Returns the bytes that the process holds and that memory_count() does not see: its anonymous
// resident memory (/proc/self/status) less arenas, others and host. They are what LibTorch, MKL,
// oneDNN and Gloo take past LibTorch's allocator, and Perigee's own graphs and programs. 0 where
// the system does not tell.
int64_t library_bytes();

}  // namespace perigee::exec
