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

ColumnTotals::ColumnTotals(at::ScalarType type, int64_t parts, std::initializer_list<Tensor> totals)
    : partials_(totals.size()) {
  int64_t columns = 0;
  at::TensorOptions options;
  for (const auto& total : totals) {
    if (!total.defined()) continue;
    columns = total.numel();
    options = total.options().dtype(wide_type(type));
    sums_.out[sums_.count] = total.mutable_data_ptr();
    sums_.elements[sums_.count++] = element_of(total.scalar_type());
  }
  if (sums_.count == 0) return;
  memory_ = at::empty({sums_.count, parts, columns}, options);
  int64_t place = 0;
  for (size_t k = 0; const auto& total : totals) {
    if (total.defined()) partials_[k] = memory_.select(0, place++).mutable_data_ptr();
    ++k;
  }
}

void ColumnTotals::finish() const {
  if (sums_.count == 0) return;
  sum_parts(memory_.const_data_ptr(), memory_.size(1), memory_.size(2),
            element_of(memory_.scalar_type()), sums_, current_stream());
  check_launch("sum_parts");
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
    out[0] = at::empty(type.shape, x.options());
    const ColumnTotals totals(scalar, parts, {out[0]});
    column_sums(x.const_data_ptr(), totals.partials(0), parts, shape, element_of(scalar),
                current_stream());
    check_launch("column_sums");
    totals.finish();
  };
}

}  // namespace perigee::cuda
