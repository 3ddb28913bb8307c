// Allocations of LibTorch's other threads while an op runs. An op with several threads splits its
// loops over the calling thread and its workers, and some loops allocate (bf16 products inside
// attention's backward pass allocate oneDNN's scratch memory). Each worker has a part of its own in
// the op's planned memory, so that the total does not depend on which workers run at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace perigee::exec {

// The memory that one worker holds during one op. Offsets are first fit and multiples of 64, so
// that the same calls get the same offsets.
class WorkerMemory {
 public:
  // Returns the offset of a new block of that many bytes, held until release().
  int64_t hold(int64_t bytes);
  // Sets the address of the block that the last hold() returned.
  void set_address(const void* address) { blocks_[last_].address = address; }
  // Frees the block at the address. Returns whether there was one.
  bool release(const void* address);

  bool empty() const { return blocks_.empty(); }
  int64_t peak() const { return peak_; }  // bytes

 private:
  struct Block {
    int64_t offset = 0, bytes = 0;
    const void* address = nullptr;
  };
  std::vector<Block> blocks_;  // by offset
  size_t last_ = 0;
  int64_t peak_ = 0;
};

// The workers of the op that the calling thread runs next. While it exists, their allocations are
// served (`begin` given) or recorded. Do not nest.
class Workers {
 public:
  // Records the workers' allocations.
  Workers();
  // Serves the workers' allocations: worker k has the bytes from begin + k * bytes_each on.
  Workers(std::byte* begin, int64_t bytes_each);
  ~Workers();
  Workers(const Workers&) = delete;

  int64_t count() const;
  // Returns the most bytes that any worker held at once.
  int64_t peak() const;
  // Returns whether no worker holds memory.
  bool empty() const;
};

// For the allocator, which calls these on any thread; they do nothing on threads that are no
// workers. Returns whether the calling thread is a worker whose allocations are served.
bool is_served_worker();
// Returns the address of an allocation of this worker. Throws Error where the worker's part
// is full.
void* serve_worker(int64_t bytes);
// Records an allocation of this worker.
void record_worker(const void* address, int64_t bytes);
void release_worker(const void* address);

}  // namespace perigee::exec
