// Kernels that are right or have one fault, for launch_test.cc.
#pragma once

#include <cstdint>

namespace perigee::cuda {

inline constexpr int kBlock = 256;  // threads, and elements of from and to

// Reverses a block's elements through shared memory; wrong without the barrier.
void reverse_block(const int* from, int* to, bool barrier);

// Half of the threads wait at a barrier that the others never reach.
void half_of_a_block_waits(int* to);

// Half of the threads of each warp wait at a barrier that the others never reach.
void half_of_a_warp_waits(int* to);

// Writes n elements; without the bound also those after them, up to a whole block.
void fill_elements(int* to, int64_t n, bool bound);

}  // namespace perigee::cuda
