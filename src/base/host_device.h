// Functions that the CPU's and a GPU's code share: headers that use this include no torch header
// and nothing that nvcc lacks.
#pragma once

#include <cmath>

#if defined(__CUDACC__)
#define PERIGEE_BOTH __host__ __device__ __forceinline__
#elif defined(__GNUC__)
// Inlined always, so that vector loops compile them for their own instruction set.
#define PERIGEE_BOTH __attribute__((always_inline)) inline
#else
#define PERIGEE_BOTH inline
#endif

namespace perigee {

#if defined(__CUDA_ARCH__)
PERIGEE_BOTH float square_root(float x) { return ::sqrtf(x); }
PERIGEE_BOTH double square_root(double x) { return ::sqrt(x); }
#else
PERIGEE_BOTH float square_root(float x) { return __builtin_sqrtf(x); }
PERIGEE_BOTH double square_root(double x) { return __builtin_sqrt(x); }
#endif

}  // namespace perigee
