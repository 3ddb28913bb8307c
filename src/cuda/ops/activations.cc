// SwiGLU, and GELU's gradient with the sum of its rows.
#include <ATen/ATen.h>

#include "cuda/ops/ops.h"
#include "exec/reference/ops.h"

namespace perigee::cuda {
namespace {

using Operands = std::span<const at::Tensor>;
using Results = std::span<at::Tensor>;

}  // namespace

Kernel gelu_backward_sum(const Arguments& a, const OpContext&) {
  return [grad = a.operand("grad_output"), self = a.operand("self"), sum_wanted = a.wanted(1),
          exact = a.text("approximate", "none") == "none",
          math = exec::reference_op(a.op())](Operands in, Results out, const Draw& draw) {
    const auto& x = in[self];
    const auto g = in[grad].to(x.scalar_type()).contiguous();
    if (!is_computed(x.scalar_type()) || x.numel() == 0 || !has_whole_rows(x) ||
        !has_whole_rows(g)) {
      return math(in, out, draw);
    }
    const Rows shape = {x.numel() / x.size(-1), x.size(-1)};
    const int64_t parts = parts_of(shape.rows);
    out[0] = at::empty(x.sizes(), x.options());
    const auto sum = at::empty({shape.columns}, x.options());
    const ColumnTotals totals(x.scalar_type(), parts, {sum});
    gelu_backward_sum(g.const_data_ptr(), x.const_data_ptr(), out[0].mutable_data_ptr(),
                      totals.partials(0), parts, shape, exact, element_of(x.scalar_type()),
                      current_stream());
    check_launch("gelu_backward_sum");
    totals.finish();
    if (sum_wanted) out[1] = sum;
  };
}

Kernel swiglu(const Arguments& a, const OpContext&) {
  return [first = a.operand("gate"), second = a.operand("up"), math = exec::reference_op(a.op())](
             Operands in, Results out, const Draw& draw) {
    const auto type = in[first].scalar_type();
    if (!is_computed(type) || in[second].sizes() != in[first].sizes()) return math(in, out, draw);
    const auto gate = in[first].contiguous(), up = in[second].to(type).contiguous();
    out[0] = at::empty(gate.sizes(), gate.options());
    swiglu(gate.const_data_ptr(), up.const_data_ptr(), out[0].mutable_data_ptr(), gate.numel(),
           element_of(type), current_stream());
    check_launch("swiglu");
  };
}

Kernel swiglu_backward(const Arguments& a, const OpContext&) {
  return [upstream = a.operand("grad"), first = a.operand("gate"), second = a.operand("up"),
          math = exec::reference_op(a.op())](Operands in, Results out, const Draw& draw) {
    const auto type = in[first].scalar_type(), of_up = in[second].scalar_type();
    if (!is_computed(type) || in[second].sizes() != in[first].sizes()) return math(in, out, draw);
    const auto g = in[upstream].to(type).contiguous(), gate = in[first].contiguous(),
               up = in[second].to(type).contiguous();
    out[0] = at::empty(gate.sizes(), gate.options());
    const auto d_up = at::empty(gate.sizes(), gate.options());
    swiglu_backward(g.const_data_ptr(), gate.const_data_ptr(), up.const_data_ptr(),
                    out[0].mutable_data_ptr(), d_up.mutable_data_ptr(), gate.numel(),
                    element_of(type), current_stream());
    check_launch("swiglu_backward");
    if (out.size() > 1) out[1] = d_up.to(of_up);
  };
}

}  // namespace perigee::cuda
