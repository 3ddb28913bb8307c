// Planned memory. LibTorch's ops allocate internally; while a PlannedAllocations lives on a thread,
// the thread's n-th allocation is served at its planned address. The allocator is installed once
// over LibTorch's CPU allocator, and passes allocations of all other threads through.
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

// Installs the allocator in this process; later calls do nothing. Existing tensors stay valid.
void install_allocator();

class SharedMemory;

// Returns zeroed memory for a program's frames, 64-byte aligned, in which planned allocations may
// be served. `shared`: it lies there, unless there is too little of it: then in private memory,
// which a line of the log says once. Throws Error when there is not enough.
std::shared_ptr<std::byte> allocate_frames(int64_t bytes, SharedMemory* shared = nullptr);

// Returns zeroed memory of this process that does not count, or nullptr where there is not enough.
std::shared_ptr<std::byte> allocate_uncounted(int64_t bytes);

// Returns the memory, of which `bytes` bytes count as a program's frames for as long as the pointer
// lives. `shared`: it is no anonymous memory of the process.
std::shared_ptr<std::byte> counted_frames(std::shared_ptr<std::byte> memory, int64_t bytes,
                                          bool shared);

// Returns zeroed memory, 64-byte aligned, for offloaded values. It counts neither as LibTorch's
// allocations nor in memory_count()'s peak. Throws Error when there is not enough.
std::shared_ptr<std::byte> allocate_host_frames(int64_t bytes);

// Serves this thread's allocations at their planned addresses during its lifetime. Must not nest.
class PlannedAllocations {
 public:
  // `bases`: addresses of frames. If `worker_bytes` is not 0, the first allocation is the memory of
  // the op's workers, that many bytes for each (compile::Instruction::worker_bytes). Throws Error
  // where the op has more workers than that.
  PlannedAllocations(std::span<const compile::Allocation> allocations,
                     std::span<std::byte* const> bases, int64_t worker_bytes = 0);
  ~PlannedAllocations();
  PlannedAllocations(const PlannedAllocations&) = delete;

  // Throws Error unless all planned allocations were made. An allocation of another size, or one
  // too many, throws when it is made.
  void check_all_made() const;

 private:
  std::optional<Workers> workers_;
};

// Records this thread's allocations and deallocations, and the memory of its workers. Must
// not nest.
class RecordedAllocations {
 public:
  RecordedAllocations();
  ~RecordedAllocations();
  RecordedAllocations(const RecordedAllocations&) = delete;

  struct Entry {
    const void* address = nullptr;
    int64_t bytes = 0;
    // Number of allocations made before this one was freed; -1: not freed.
    int64_t freed_at = -1;
  };
  const std::vector<Entry>& entries() const { return entries_; }
  const Workers& workers() const { return workers_; }

 private:
  friend struct AllocatorAccess;
  std::vector<Entry> entries_;
  Workers workers_;
};

// Bytes in use in the process, counted from install_allocator() on.
struct MemoryCount {
  int64_t arenas = 0;  // of allocate_frames()
  int64_t others = 0;  // LibTorch's allocations outside of arenas: batches, results of untraced ops
  int64_t peak = 0;    // largest arenas + others since reset_peak()
  int64_t host = 0;    // of allocate_host_frames()
};
MemoryCount memory_count();
void reset_peak();

// Returns the bytes of the process that memory_count() does not include: its anonymous resident
// memory (/proc/self/status) minus arenas, others and host. LibTorch, MKL, oneDNN and Gloo allocate
// them without LibTorch's allocator; graphs and programs are among them. 0 where /proc is
// not available.
int64_t library_bytes();

}  // namespace perigee::exec
