// Checked CUDA calls: an error names the call, the device and a remedy.
#pragma once

#include <string>

#include "cuda/calls.h"

namespace perigee::cuda {

// Returns the remedy for an error, to append to a message, or "".
std::string remedy(cudaError_t error);

// Throws Error unless the call succeeded. `call`: its name.
void check(cudaError_t result, const char* call);

}  // namespace perigee::cuda

// PERIGEE_CUDA(cudaFree, p) calls cudaFree(p) and checks its result.
#define PERIGEE_CUDA(name, ...) \
  ::perigee::cuda::check(::perigee::cuda::calls().name(__VA_ARGS__), #name)
