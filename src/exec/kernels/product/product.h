// How matrices are multiplied.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string_view>

namespace perigee::exec::kernels {

// Returns whether a product [m,k] by [k,n] goes by blocks (blocked_product.h) rather than as LibTorch
// chooses, by MKL for float32 and by oneDNN for bfloat16: on CPUs that can (has_blocks), from 2^18
// multiplications and sides of 8 on, below which a call's fixed cost counts; on Intel's float32
// products only where they add a bias [n].
bool prefers_blocks(at::ScalarType factors, int64_t m, int64_t n, int64_t k, bool bias = false);

// A product's argument "way" says how it is computed instead: by blocks where the CPU can ("blocks"),
// or as LibTorch chooses ("library"). Returns the way that prefers_blocks() does not take; "" where
// this CPU has one way.
std::string_view other_way(at::ScalarType factors, int64_t m, int64_t n, int64_t k,
                           bool bias = false);

}  // namespace perigee::exec::kernels
