// What kernels of single elements in lanes share: which types they have, and how
// they are dispatched.
#pragma once

#include "exec/kernels/lanes.h"
#include "exec/ops/op.h"

namespace perigee::exec::kernels {

// Whether the op's result is float32 or bfloat16.
inline bool has_lanes(const Arguments& a) {
  const auto dtype = a.type().dtype;
  return dtype == graph::DType::float32 || dtype == graph::DType::bfloat16;
}

// Calls f<T>() for these types.
template <class F>
void dispatch_lanes(at::ScalarType type, F f) {
  type == at::kFloat ? f.template operator()<float>() : f.template operator()<c10::BFloat16>();
}

// Elements for one thread at least.
inline constexpr int64_t kGrain = 32768;

}  // namespace perigee::exec::kernels
