// Checked CUDA calls: an error names the call, the device and a remedy.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace perigee::cuda {

// Returns the remedy for an error, to append to a message, or "".
std::string remedy(cudaError_t error);

// Throws Error unless the call succeeded. `call`: its source text.
void check(cudaError_t result, const char* call);

}  // namespace perigee::cuda

#define PERIGEE_CUDA(call) ::perigee::cuda::check((call), #call)
