// Checked CUDA calls: an error names the call, the device and a remedy.
#pragma once

#include <string>

#include "cuda/calls.h"

namespace perigee::cuda {

// Returns the text of a version of CUDA, "13.0".
std::string version_text(int number);

// Returns the remedy for an error, to append to a message, or "".
std::string remedy(cudaError_t error);

// Throws Error unless the call succeeded. `call`: its name.
void check(cudaError_t result, const char* call);

// Throws the Error of a call or an op that failed on the GPU; -1: on none.
[[noreturn]] void fail_on(int device, const char* call, cudaError_t error);

}  // namespace perigee::cuda

// PERIGEE_CUDA(cudaFree, p) calls cudaFree(p) and checks its result.
#define PERIGEE_CUDA(name, ...) \
  ::perigee::cuda::check(::perigee::cuda::calls().name(__VA_ARGS__), #name)
