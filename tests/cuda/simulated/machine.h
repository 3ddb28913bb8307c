// Four GPUs of host memory, as the functions of src/cuda/calls.h: streams run their work later, in
// an order that a seed chooses, and CUDA's rules on current devices are enforced. Only work on the
// same stream and work after an event are ordered.
#pragma once

#include <cstdint>
#include <functional>
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

// Returns the calls that broke a rule since restart(), with the rule.
std::vector<std::string> broken_rules();

}  // namespace perigee::cuda::simulated
