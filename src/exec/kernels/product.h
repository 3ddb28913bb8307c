// Which of LibTorch's libraries multiplies matrices, and how.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace perigee::exec::kernels {

enum class ProductWay { library, onednn, blocks };

// Returns the fastest way to multiply [m,k] by [k,n] on this CPU; it depends on the type, the shape
// and the CPU alone. The factors are plain: rows or columns are contiguous.
// - blocks (blocked_product.h): on CPUs other than Intel's that can (has_blocks), from 2^18
//   multiplications and sides of 8 on: 3 to 40% less time than MKL and oneDNN.
// - onednn: the same, where a side is below 192 in a product of 2^24 multiplications or more, so
//   that packed blocks would be used too few times: 3 to 20% less time than MKL, 2% less than
//   blocks.
// - library: as LibTorch chooses, MKL for float32 and oneDNN for bfloat16.
ProductWay product_way(at::ScalarType factors, int64_t m, int64_t n, int64_t k);

}  // namespace perigee::exec::kernels
