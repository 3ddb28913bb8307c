// The parts of LibTorch's CUDA support that this folder uses, besides ops. Tests have their own.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/calls.h"
#include "exec/memory/allocator.h"
#include "exec/memory/served_allocations.h"

namespace perigee::cuda {

// Starts LibTorch's CUDA support in this process, with planned addresses in its allocator.
void start_torch();

// Says whether float32 products and convolutions of this process may compute in TF32.
void allow_tf32(bool allowed);

// Makes the GPU current, and the stream the one that LibTorch's ops of this thread are submitted
// to, until the result is dropped. Dropping never throws.
std::shared_ptr<void> direct_to(int device, cudaStream_t stream);

// Makes the workspaces that cuBLAS keeps for this thread and its stream of the current GPU. LibTorch
// would allocate them in the first product: they must not lie at planned addresses.
void make_workspaces();

// cuBLASLt for this thread's ops on the current GPU.
struct BlasLt {
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;  // of this thread and its stream (make_workspaces)
  size_t workspace_bytes = 0;
};
BlasLt blas_lt();

// Returns the stream that this thread's ops on the GPU are submitted to.
cudaStream_t current_stream(int device);
cudaStream_t current_stream();  // on the current GPU

// Asks `allocations` for the addresses of this thread's allocations on the GPU, or (nullptr) ends
// that. LibTorch makes those that it does not serve.
void serve(int device, exec::ServedAllocations* allocations);

// Appends this thread's allocations on the GPU, and when they are freed, to `entries`, or (nullptr)
// ends that.
void record(int device, std::vector<exec::RecordedAllocations::Entry>* entries);

// Memory of LibTorch's allocator for one CUDA graph. Between open() and close(), its memory
// for streams of the GPU that are captured is from a pool of its own, which lives as long as this.
class CapturePool {
 public:
  explicit CapturePool(int device);
  ~CapturePool();  // throws nothing
  CapturePool(const CapturePool&) = delete;
  void open();
  void close();

 private:
  int device_;
  bool open_ = false, used_ = false;
  std::pair<uint64_t, uint64_t> id_;  // c10::MempoolId_t
};

// The caching allocator of a GPU. Starts a peak; returns the bytes of the tensors in use.
int64_t reset_tensor_peak(int device);
// Returns the bytes of its tensors at most since the last reset.
int64_t tensor_peak(int device);

// Returns the bytes that the caching allocator of a GPU has from CUDA.
int64_t cached_memory(int device);

// Returns an element of the product of two matrices of ones [n, n] in bf16 on the current GPU: n.
double product_of_ones(int64_t n);

// Gives unused memory of the caching allocator back to CUDA.
void free_cached_memory();

}  // namespace perigee::cuda
