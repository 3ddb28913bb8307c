// The functions of CUDA's runtime, cuBLASLt and NCCL that this folder calls, except launches of
// kernels, as a table that tests fill with stand-ins (tests/cuda/simulated).
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#define PERIGEE_CALLS(X)                  \
  X(cublasLtGetStatusString)              \
  X(cublasLtMatmul)                       \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)          \
  X(cudaDeviceGetStreamPriorityRange)     \
  X(cudaDriverGetVersion)                 \
  X(cudaEventCreateWithFlags)             \
  X(cudaEventElapsedTime)                 \
  X(cudaEventQuery)                       \
  X(cudaEventRecord)                      \
  X(cudaEventRecordWithFlags)             \
  X(cudaEventSynchronize)                 \
  X(cudaFree)                             \
  X(cudaFreeHost)                         \
  X(cudaGetDevice)                        \
  X(cudaGetDeviceCount)                   \
  X(cudaGetDeviceProperties)              \
  X(cudaGetErrorName)                     \
  X(cudaGetErrorString)                   \
  X(cudaGetLastError)                     \
  X(cudaGraphDestroy)                     \
  X(cudaGraphExecDestroy)                 \
  X(cudaGraphInstantiateWithFlags)        \
  X(cudaGraphLaunch)                      \
  X(cudaMemGetInfo)                       \
  X(cudaMemcpyAsync)                      \
  X(cudaMemsetAsync)                      \
  X(cudaRuntimeGetVersion)                \
  X(cudaSetDevice)                        \
  X(cudaStreamBeginCapture)               \
  X(cudaStreamCreateWithPriority)         \
  X(cudaStreamEndCapture)                 \
  X(cudaStreamSynchronize)                \
  X(cudaStreamWaitEvent)                  \
  X(ncclAllGather)                        \
  X(ncclAllReduce)                        \
  X(ncclBroadcast)                        \
  X(ncclCommAbort)                        \
  X(ncclCommDestroy)                      \
  X(ncclCommGetAsyncError)                \
  X(ncclCommInitRankConfig)               \
  X(ncclGetErrorString)                   \
  X(ncclGetLastError)                     \
  X(ncclGetUniqueId)                      \
  X(ncclGetVersion)                       \
  X(ncclGroupEnd)                         \
  X(ncclGroupStart)                       \
  X(ncclMemAlloc)                         \
  X(ncclMemFree)                          \
  X(ncclRecv)                             \
  X(ncclReduce)                           \
  X(ncclReduceScatter)                    \
  X(ncclSend)

// Functions of NCCL 2.27. They are nullptr where an older NCCL is loaded.
#define PERIGEE_NEWER_CALLS(X) \
  X(ncclCommWindowDeregister)  \
  X(ncclCommWindowRegister)

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 0)
extern "C" {
typedef struct ncclWindow_vidmem* ncclWindow_t;
#define NCCL_WIN_COLL_SYMMETRIC 0x01
ncclResult_t ncclCommWindowRegister(ncclComm_t, void*, size_t, ncclWindow_t*, int);
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t);
}
#endif

namespace perigee::cuda {

struct Calls {
  // C++ overloads these two.
  cudaError_t (*cudaHostAlloc)(void**, size_t, unsigned) = nullptr;
  cudaError_t (*cudaMalloc)(void**, size_t) = nullptr;
#define PERIGEE_CALL(name) decltype(&::name) name = nullptr;
  PERIGEE_CALLS(PERIGEE_CALL)
  PERIGEE_NEWER_CALLS(PERIGEE_CALL)
#undef PERIGEE_CALL
};

// Returns the table: the libraries' functions, or a test's.
const Calls& calls();

}  // namespace perigee::cuda
