// Products of float32 matrices by the faster of the libraries in LibTorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace perigee::exec::kernels {

// A product a [m,k] b [k,n]; `plain_factors`: each factor is contiguous, or its transpose is.
struct FloatProduct {
  int64_t m, n, k;
  bool plain_factors;
};

// Returns whether LibTorch's oneDNN multiplies float32 matrices on this CPU (AVX-512).
bool has_onednn();

// Returns whether the product has a shape for oneDNN: at least 2^24 multiplications, since a call
// takes 30 us more than MKL's, and no side below 32.
bool suits_onednn(const FloatProduct& product);

// Returns whether oneDNN computes the product rather than MKL, which LibTorch calls: on CPUs other
// than Intel's that have it, for shapes that suit it. There it takes 3 to 21% less time, and a
// third less where MKL's columns are unaligned. Depends on the shape and the CPU alone.
bool prefers_onednn(const FloatProduct& product);

// result [m,n] = or += a [m,k] b [k,n], float32 on the CPU, by oneDNN; `result` is contiguous. Its
// allocations depend on shapes, strides and the number of threads. Requires has_onednn.
void multiply_by_onednn(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b,
                        bool add);

// Returns the product of two tensors, or nothing where they are not float32 matrices on the CPU.
std::optional<FloatProduct> float_product(const at::Tensor& a, const at::Tensor& b);

}  // namespace perigee::exec::kernels
