// Sums over all dims but the last one, such as the gradients of biases.
#include <ATen/ATen.h>

#include <algorithm>

#include "cuda/ops/ops.h"
#include "exec/ops/dispatcher.h"
#include "exec/tensor.h"

namespace perigee::cuda {
namespace {

using at::Tensor;
using Operands = std::span<const Tensor>;
using Results = std::span<Tensor>;

// Returns whether the dims are all but the last one.
bool are_leading(std::vector<int64_t> dims, int64_t count) {
  for (auto& d : dims) d += d < 0 ? count : 0;
  std::sort(dims.begin(), dims.end());
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != static_cast<int64_t>(i)) return false;
  }
  return std::ssize(dims) == count - 1;
}

}  // namespace

bool has_whole_rows(const Tensor& t) {
  return t.is_contiguous() && t.size(-1) * static_cast<int64_t>(t.element_size()) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
}

int64_t parts_of(int64_t rows) { return std::clamp<int64_t>(rows / 64, 1, 256); }

Kernel sum_over_dims(const Arguments& a, const OpContext& context) {
  constexpr int64_t kFewRows = 256;  // LibTorch's kernel is as fast
  return [self = a.operand("self"), dims = a.integers("dim"), type = a.type(),
          plain = exec::dispatcher_kernel_on(context.place, a.op())](Operands in, Results out,
                                                                     const Draw& draw) {
    const auto& x = in[self];
    const auto scalar = x.scalar_type();
    if (x.dim() < 2 || !is_computed(scalar) || exec::scalar_type(type.dtype) != scalar ||
        !are_leading(dims, x.dim()) || x.numel() < kFewRows * x.size(-1) || x.numel() == 0 ||
        !has_whole_rows(x)) {
      return plain(in, out, draw);
    }
    const Rows shape = {x.numel() / x.size(-1), x.size(-1)};
    const int64_t parts = parts_of(shape.rows);
    const auto partials = at::empty({parts, shape.columns}, x.options().dtype(wide_type(scalar)));
    column_sums(x.const_data_ptr(), partials.mutable_data_ptr(), parts, shape, element_of(scalar),
                current_stream());
    check_launch("column_sums");
    out[0] = partials.sum(0).to(scalar).view(type.shape);
  };
}

}  // namespace perigee::cuda
