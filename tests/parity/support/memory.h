// Counts the bytes requested from LibTorch's CPU allocator, below Perigee's own allocator and
// independent of it.
#pragma once

#include <cstdint>

namespace perigee::parity {

// Counts this thread's further allocations for `owner`, from zero. Freed memory is subtracted from
// its owner's count, whichever thread frees it.
void count_memory_for(int owner);

// Resets the owner's peak to its current bytes.
void reset_counted_peak(int owner);

// Returns the owner's peak in bytes since then.
int64_t counted_peak(int owner);

// The same for all threads of the process, including earlier allocations.
void reset_counted_peak();
int64_t counted_peak();
int64_t counted_now();

}  // namespace perigee::parity
