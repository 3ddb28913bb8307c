// Products of float32 or bfloat16 matrices by blocks, each by a microkernel of LibTorch's oneDNN.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace perigee::exec::kernels {

// Returns whether this CPU has AVX-512 and LibTorch the microkernels, for float32 and bfloat16. False
// for other types.
bool has_blocks(at::ScalarType factors);

// Returns whether bfloat16 factors are multiplied as float32, to which blocks are widened as they are
// packed: on CPUs that multiply pairs of bfloat16 more slowly, or cannot.
bool widens_blocks(at::ScalarType factors);

// Returns whether there are microkernels whose factors are pairs of bfloat16.
bool has_pair_microkernels();

// result [m,n] = start + a [m,k] b [k,n], k > 0. a and b have one type, for which has_blocks holds, and
// rows or columns that are contiguous; those of the result are contiguous rows.
// The result is float32, or has the factors' type. Partial sums are float32, in an order that
// depends on k alone. start: the result itself with `add` (float32 only), or `bias` [n],
// contiguous, of the result's type, or 0.
// Allocates tensors, sized by shapes, strides, the number of threads and the CPU's cache.
// widened: whether blocks of bfloat16 are, where widens_blocks() shall not say; if not, for
// CPUs with has_pair_microkernels().
void multiply_by_blocks(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b,
                        bool add, const at::Tensor* bias = nullptr,
                        std::optional<bool> widened = std::nullopt);

}  // namespace perigee::exec::kernels
