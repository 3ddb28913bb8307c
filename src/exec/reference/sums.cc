// Ops that set or add to a sum in place, on any device.
#include <ATen/ATen.h>

#include "exec/reference/ops.h"

namespace perigee::exec {

using at::Tensor;

// sum = self @ mat2 (perigee::mm_), or sum += self @ mat2. A sum wider than the factors gets the
// product of factors that are converted: on a GPU the library does so itself.
Kernel product_in_place(const Arguments& a) {
  return [sum = a.operand("sum"), self = a.operand("self"), mat2 = a.operand("mat2"),
          beta = a.name() == "perigee::addmm_" ? 1.0 : 0.0](std::span<const Tensor> in,
                                                            std::span<Tensor>, const Draw&) {
    auto to = in[sum];
    const auto type = to.scalar_type();
    if (type != in[self].scalar_type() && to.is_cuda()) {
      at::addmm_out(to, to, in[self], in[mat2], type, beta, 1);
    } else {
      to.addmm_(in[self].to(type), in[mat2].to(type), beta);
    }
  };
}

// LibTorch's sums over equal indices have one order: on a CPU by index_add_, on a GPU by index_put_.
Kernel embedding_backward_in_place(const Arguments& a) {
  return [sum = a.operand("sum"), grad = a.operand("grad_output"), indices = a.operand("indices"),
          padding = a.integer("padding_idx", -1)](std::span<const Tensor> in, std::span<Tensor>,
                                                  const Draw&) {
    auto to = in[sum];
    const auto index = in[indices].reshape({-1}).to(at::kLong);
    auto rows = in[grad].reshape({-1, to.size(1)}).to(to.scalar_type());
    if (padding >= 0) rows = rows.masked_fill(index.eq(padding).unsqueeze(1), 0);
    if (to.is_cuda()) {
      to.index_put_({index}, rows, /*accumulate=*/true);
    } else {
      to.index_add_(0, index, rows);
    }
  };
}

}  // namespace perigee::exec
