// What LibTorch's other threads allocate while an op runs. An op that has several threads splits
// its loops over the thread that called it and its workers, and some loops allocate (bf16 products
// inside attention's backward pass take oneDNN's scratch memory). Each worker has a part of the
// op's planned memory: how much is held does not depend on which workers run at the same moment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace perigee::exec {

// The memory that one worker holds during one op. Offsets are first fit and multiples of 64: the
// same calls take the same bytes.
class WorkerMemory {
 public:
  // Returns the offset of that many bytes, held until release().
  int64_t hold(int64_t bytes);
  // Names the memory that the last hold() gave.
  void lies_at(const void* address) { blocks_[last_].address = address; }
  // Returns whether the address was held; it is free now.
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
  // Records.
  Workers();
  // Serves: worker k has the bytes from begin + k * bytes_each on.
  Workers(std::byte* begin, int64_t bytes_each);
  ~Workers();
  Workers(const Workers&) = delete;

  int64_t count() const;
  // The most bytes that a worker held at once.
  int64_t peak() const;
  // Whether nothing is held any more.
  bool empty() const;
};

// For the allocator, on any thread: a worker of an op takes these, other threads do not.
// Returns whether the calling thread is a worker whose allocations are served.
bool served_worker();
// Throws Error where the worker's part is full.
void* serve_worker(int64_t bytes);
// Notes what a worker that is recorded was given.
void note_worker(const void* address, int64_t bytes);
void release_worker(const void* address);

}  // namespace perigee::exec
