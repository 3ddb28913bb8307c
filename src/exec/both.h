// Functions that the CPU's and a GPU's code share: headers that use this have no torch and nothing
// that nvcc lacks.
#pragma once

#if defined(__CUDACC__)
#define PERIGEE_BOTH __host__ __device__ __forceinline__
#else
#define PERIGEE_BOTH inline
#endif
