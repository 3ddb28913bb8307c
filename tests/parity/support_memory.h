// Counts what is asked of LibTorch's CPU allocator, beneath Perigee's own and knowing nothing of
// it.
#pragma once

#include <cstdint>

namespace perigee::parity {

// From here on this thread's allocations are counted for `owner`, from zero. Memory goes back to
// its owner's count, whichever thread frees it.
void count_memory_for(int owner);

// Starts the owner's peak anew, at what it holds.
void reset_counted_peak(int owner);

// Bytes that the owner held at most since then.
int64_t counted_peak(int owner);

// The same for the whole process, all threads. What was there before has been counted as well.
void reset_counted_peak();
int64_t counted_peak();
int64_t counted_now();

}  // namespace perigee::parity
