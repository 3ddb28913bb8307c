// Rotary position embedding and merged attention.
#include <ATen/ATen.h>

#include "cuda/ops/ops.h"
#include "exec/reference/ops.h"

namespace perigee::cuda {
namespace {

using at::Tensor;
using Operands = std::span<const Tensor>;
using Results = std::span<Tensor>;

// Uses the reference's kernel for types without a CUDA kernel, and where the angles have neither x's
// type nor, beside 16 bits, float32, or not the shape [positions, columns].
Kernel rotation(const Arguments& a, const char* operand, bool backward) {
  return [self = a.operand(operand), first = a.operand("cos"), second = a.operand("sin"), backward,
          math = exec::reference_op(a.op())](Operands in, Results out, const Draw& draw) {
    const auto type = in[self].scalar_type(), of_angles = in[first].scalar_type();
    const auto angles = in[self].sizes().slice(in[self].dim() < 2 ? 0 : in[self].dim() - 2);
    const bool plain = in[self].dim() >= 2 && in[self].size(-1) % 2 == 0 && is_computed(type) &&
                       (of_angles == type || (is_half(type) && of_angles == at::kFloat)) &&
                       in[second].scalar_type() == of_angles && in[first].sizes() == angles &&
                       in[second].sizes() == angles;
    if (!plain) return math(in, out, draw);
    auto x = in[self];
    out[0] = at::empty(x.sizes(), x.options());
    if (x.numel() == 0) return;
    if (x.dim() != 4 || x.stride(3) != 1) {
      x = x.contiguous();
      x = x.view({1, -1, x.size(-2), x.size(-1)});
    }
    const auto cos = in[first].contiguous(), sin = in[second].contiguous();
    rotary(x.const_data_ptr(), cos.const_data_ptr(), sin.const_data_ptr(),
           out[0].mutable_data_ptr(),
           {.batch = x.size(0),
            .heads = x.size(1),
            .positions = x.size(2),
            .columns = x.size(3),
            .batch_stride = x.stride(0),
            .head_stride = x.stride(1),
            .position_stride = x.stride(2)},
           backward, {element_of(type), element_of(of_angles)}, current_stream());
    check_launch("rotary");
  };
}

}  // namespace

Kernel rotary(const Arguments& a, const OpContext&) { return rotation(a, "self", false); }
Kernel rotary_backward(const Arguments& a, const OpContext&) { return rotation(a, "grad", true); }

Kernel merge_attention(const Arguments& a, const OpContext&) {
  return [self = a.operand("self"), logsumexp = a.operand("logsumexp"), other = a.operand("other"),
          other_logsumexp = a.operand("other_logsumexp"),
          math = exec::reference_op(a.op())](Operands in, Results out, const Draw& draw) {
    const auto type = in[other].scalar_type();
    if (!is_computed(type) || in[other].size(-1) == 0) return math(in, out, draw);
    const auto wide = wide_type(type);
    const auto x = in[self].to(wide).contiguous(), y = in[other].contiguous();
    const auto a_sum = in[logsumexp].to(wide).contiguous(),
               b_sum = in[other_logsumexp].to(wide).contiguous();
    out[0] = at::empty(x.sizes(), x.options());
    const auto sums = at::empty(a_sum.sizes(), a_sum.options());
    merge_attention({x.const_data_ptr(), a_sum.const_data_ptr()},
                    {y.const_data_ptr(), b_sum.const_data_ptr()}, out[0].mutable_data_ptr(),
                    sums.mutable_data_ptr(), {a_sum.numel(), x.size(-1)}, element_of(type),
                    current_stream());
    check_launch("merge_attention");
    if (out.size() > 1) out[1] = sums;
  };
}

}  // namespace perigee::cuda
