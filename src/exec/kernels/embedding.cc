// Gradients of embeddings, added to a sum: the rows that no index names are not touched.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "base/fail.h"
#include "exec/kernels/element.h"
#include "exec/kernels/kernels.h"
#include "exec/reference/ops.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

// sum[index] += grad, row by row in their order, of `columns` numbers each; rows are `width` apart.
#define PERIGEE_ADD_ROWS(T)                                                             \
  PERIGEE_SIMD void add_rows(T* sum, const T* grad, const int64_t* index, int64_t rows, \
                             int64_t width, int64_t columns, int64_t padding) {         \
    for (int64_t row = 0; row < rows; ++row) {                                          \
      if (index[row] == padding) continue;                                              \
      T* to = sum + index[row] * width;                                                 \
      for (int64_t i = 0; i < columns; ++i) to[i] += grad[row * width + i];             \
    }                                                                                   \
  }
PERIGEE_ADD_ROWS(float)
PERIGEE_ADD_ROWS(double)
#undef PERIGEE_ADD_ROWS

void check_indices(const int64_t* index, int64_t count, int64_t limit) {
  for (int64_t i = 0; i < count; ++i) {
    if (index[i] >= 0 && index[i] < limit) continue;
    fail_run("exec", "indices of an embedding must lie in [0, {}), but got {}", limit, index[i]);
  }
}

}  // namespace

Kernel embedding_backward_in_place(const Arguments& a) {
  return [sum = a.operand("sum"), grad = a.operand("grad_output"), indices = a.operand("indices"),
          padding = a.integer("padding_idx", -1), math = reference_op(a.op())](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw& draw) {
    const auto& to = in[sum];
    const auto type = to.scalar_type();
    if ((type != at::kFloat && type != at::kDouble) || !to.is_contiguous()) {
      return math(in, out, draw);
    }
    const auto index = in[indices].to(at::kLong).contiguous(),
               rows = in[grad].to(type).contiguous();
    const auto* lines = index.const_data_ptr<int64_t>();
    check_indices(lines, index.numel(), to.size(0));
    // Threads share the columns, so that the sums have one order on any number of threads.
    const auto add = [&]<class T>() {
      constexpr int64_t kLine = 64 / sizeof(T);  // columns of a cache line
      const int64_t width = to.size(1);
      at::parallel_for(0, (width + kLine - 1) / kLine, 4, [&](int64_t begin, int64_t end) {
        const int64_t first = begin * kLine, columns = std::min(end * kLine, width) - first;
        add_rows(to.mutable_data_ptr<T>() + first, rows.const_data_ptr<T>() + first, lines,
                 index.numel(), width, columns, padding);
      });
    };
    type == at::kFloat ? add.template operator()<float>() : add.template operator()<double>();
  };
}

}  // namespace perigee::exec::kernels
