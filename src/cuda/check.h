// Every call of CUDA is checked: an error names the call, the device and what to do.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace perigee::cuda {

// Returns what a user can do about the error, or "".
std::string remedy(cudaError_t error);

// Throws Error unless the call worked.
void check(cudaError_t result, const char* call);

}  // namespace perigee::cuda

#define PERIGEE_CUDA(call) ::perigee::cuda::check((call), #call)
