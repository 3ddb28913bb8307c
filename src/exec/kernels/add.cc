// Sums of a float32 and a bfloat16 tensor, in one pass: LibTorch converts the latter first.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "exec/kernels/kernels.h"
#include "exec/kernels/lanes_op.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

// The result may share memory with `wide`.
PERIGEE_SIMD void add_low(const float* wide, const c10::BFloat16* low, float* sum, int64_t n) {
  each_lanes(n, [&](int64_t i, auto count) PERIGEE_LAMBDA {
    store_lanes(sum + i, load_lanes(wide + i, count, 0) + load_lanes(low + i, count, 0), count);
  });
}

bool is_dense(const Tensor& t, at::ScalarType type) {
  return t.scalar_type() == type && t.is_contiguous();
}

}  // namespace

Kernel add(const Arguments& a) {
  const int self = a.optional_operand("self"), other = a.optional_operand("other");
  if (a.type().dtype != graph::DType::float32 || self < 0 || other < 0 || a.find("alpha")) {
    return {};
  }
  return [self, other, library = dispatcher_kernel(a.op())](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw& draw) {
    const bool first = in[self].scalar_type() == at::kFloat;
    const Tensor &wide = in[first ? self : other], &low = in[first ? other : self];
    if (!is_dense(wide, at::kFloat) || !is_dense(low, at::kBFloat16) ||
        wide.sizes() != low.sizes()) {
      return library(in, out, draw);
    }
    out[0] = at::empty(wide.sizes(), wide.options());
    const auto* from = wide.const_data_ptr<float>();
    const auto* term = low.const_data_ptr<c10::BFloat16>();
    auto* to = out[0].mutable_data_ptr<float>();
    at::parallel_for(0, wide.numel(), kGrain, [&](int64_t begin, int64_t end) {
      add_low(from + begin, term + begin, to + begin, end - begin);
    });
  };
}

}  // namespace perigee::exec::kernels
