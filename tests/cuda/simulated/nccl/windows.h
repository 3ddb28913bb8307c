// Symmetric windows of the simulated NCCL, which its communicators (nccl.cc) ask for. The machine's
// lock is held in all calls.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/calls.h"

namespace perigee::cuda::simulated {

// A rank's end of a communicator.
struct Member {
  const void* clique = nullptr;
  int size = 1;
  int rank = 0, device = 0;
};

ncclResult_t register_window(const Member& member, void* memory, size_t bytes, ncclWindow_t* window,
                             int flags);
ncclResult_t deregister_window(const Member& member, ncclWindow_t window);

// Returns ncclInProgress while other members have not registered a window that this one has, and an
// error after a registration that broke a rule.
ncclResult_t state_of_windows(const Member& member);

// Drops a member's windows: its communicator is destroyed or `aborted`.
void end_windows(const Member& member, bool aborted);

// Where a buffer lies: the number of the window among the member's registrations (-1: none), and the
// offset in it.
struct WindowPlace {
  int64_t window = -1, offset = 0;
  bool operator==(const WindowPlace&) const = default;
};
WindowPlace place_in_window(const Member& member, const void* buffer);

// Counts a collective whose buffers all lie in windows.
void count_in_windows();

// Forgets all windows.
void restart_windows();

// Notes memory that ncclMemAlloc gives, and memory that is freed.
void nccl_gives(const void* memory, size_t bytes);
void nccl_frees(const void* memory);

}  // namespace perigee::cuda::simulated
