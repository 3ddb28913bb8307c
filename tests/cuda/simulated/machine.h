// Four GPUs of host memory, as the functions of src/cuda/calls.h: streams run their work later, in
// an order that a seed chooses, and CUDA's rules on current devices are enforced. Only work on the
// same stream and work after an event are ordered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/calls.h"

namespace perigee::cuda::simulated {

inline constexpr int kDevices = 4;

// Drops all work that is left, restores the table, and chooses the order of the work to come.
void restart(uint64_t seed);

// Returns the table of calls, in which a test may replace functions until the next restart().
Calls& table();

// Submits `work` to a stream.
void submit(cudaStream_t stream, std::function<void()> work);

// Work submitted to the stream after hold() runs only after release().
void hold(cudaStream_t stream);
void release(cudaStream_t stream);

// Returns the thread's current device.
int current_device();

// Whether LibTorch's float32 products and convolutions use TF32.
extern bool tf32;

// Whether NCCL makes the windows that it is asked for; restart() sets it.
extern bool makes_windows;

// Since restart(): windows of all ranks, and collectives whose buffers lie in them.
struct WindowCounts {
  int64_t made = 0, open = 0, collectives = 0;
};
WindowCounts window_counts();

// Returns the memory as if ncclMemAlloc had given it.
std::shared_ptr<std::byte> as_nccl_memory(std::shared_ptr<std::byte> memory, int64_t bytes);

// Returns the calls that broke a rule since restart(), with the rule.
std::vector<std::string> broken_rules();

}  // namespace perigee::cuda::simulated
