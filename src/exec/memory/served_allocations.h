// An op's allocations at their planned addresses on a device whose kernels allocate from LibTorch's
// allocator (a GPU).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compile/program.h"

namespace perigee::exec {

// The planned allocations of one instruction. The device's allocator asks it where an allocation of
// the running op lies. An allocation that is not planned, such as a workspace that a library keeps,
// is LibTorch's.
class ServedAllocations {
 public:
  // `bases`: addresses of frames. `allocations` of equal bytes are served in their order.
  ServedAllocations(std::span<const compile::Allocation> allocations,
                    std::span<std::byte* const> bases);

  // Begins a run of the op: nothing has been served.
  void start();
  // No further allocation is served in this run.
  void stop() { running_ = false; }

  // Returns the planned address of an allocation of so many bytes, or nullptr where LibTorch must
  // make it: each planned allocation is served once in a run, and not where one that is in use lies.
  void* serve(int64_t bytes);
  // Frees an allocation. Returns whether it was served and in use.
  bool free(const void* address);

  // Returns whether the address is in a served allocation that is in use.
  bool holds(const void* address) const;
  // Returns the bytes of served allocations that are in use.
  int64_t in_use() const;

 private:
  struct Served {
    std::byte* address = nullptr;
    int64_t bytes = 0;
    bool made = false, used = false;  // in this run; in use

    bool overlaps(const Served& other) const {
      return address < other.address + other.bytes && other.address < address + bytes;
    }
  };
  std::vector<Served> planned_;
  bool running_ = false;
};

}  // namespace perigee::exec
