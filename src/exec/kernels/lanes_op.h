// Types and dispatch of elementwise kernels in lanes.
#pragma once

#include "exec/kernels/lanes.h"
#include "exec/ops/op.h"

namespace perigee::exec::kernels {

// Returns whether the op's results, which have one type, are float32 or bfloat16.
inline bool has_lanes(const Arguments& a) {
  size_t output = 0;  // the first one that is needed
  while (output + 1 < a.op().outputs.size() && !a.wanted(output)) ++output;
  const auto dtype = a.type(output).dtype;
  return dtype == graph::DType::float32 || dtype == graph::DType::bfloat16;
}

// Calls f<T>() for float32 or bfloat16.
template <class F>
void dispatch_lanes(at::ScalarType type, F f) {
  type == at::kFloat ? f.template operator()<float>() : f.template operator()<c10::BFloat16>();
}

// The fewest elements per thread.
inline constexpr int64_t kGrain = 32768;

}  // namespace perigee::exec::kernels
