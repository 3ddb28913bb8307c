// Products of 16-bit matrices, added up in float32.
#pragma once

#include <ATen/core/Tensor.h>

#include "exec/ops/op.h"

namespace perigee::exec::kernels {

// sum [m,n] float32, rows contiguous, = or += a [m,k] b [k,n], both bfloat16 or both float16. No
// partial sum is rounded to 16 bits. Blocks of the factors are packed for the CPU's bfloat16
// instructions where it has them; the BLAS in LibTorch converts other types and on other CPUs.
// Allocates tensors, sized by shapes and strides alone.
void multiply_wide(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool add);

// Returns whether multiply_wide computes it.
bool is_wide_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

// perigee::addmm_ and mm_ on the CPU.
Kernel product_in_place(const Arguments& arguments);

}  // namespace perigee::exec::kernels
