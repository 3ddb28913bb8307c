// The parts of LibTorch's CUDA support that this folder uses, besides ops. Tests have their own.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/calls.h"

namespace perigee::cuda {

// Starts LibTorch's CUDA support in this process.
void start_torch();

// Makes float32 products and convolutions of this process compute in float32, not in TF32.
void forbid_tf32();

// Makes the GPU current, and the stream the one that LibTorch's ops of this thread are submitted
// to, until the result is dropped. Dropping never throws.
std::shared_ptr<void> direct_to(int device, cudaStream_t stream);

// Returns the stream that this thread's ops on the GPU are submitted to.
cudaStream_t current_stream(int device);
cudaStream_t current_stream();  // on the current GPU

// The caching allocator of a GPU: bytes of its tensors at most since the last reset.
void reset_tensor_peak(int device);
int64_t tensor_peak(int device);

// Returns the bytes that the caching allocator of a GPU has from CUDA.
int64_t cached_memory(int device);

// Returns an element of the product of two matrices of ones [n, n] in bf16 on the current GPU: n.
double product_of_ones(int64_t n);

// Gives unused memory of the caching allocator back to CUDA.
void free_cached_memory();

}  // namespace perigee::cuda
