// Layer norm of half types, whose statistics are float32 on every device: LibTorch's CPU kernel
// keeps them in the half type unless weight and bias are float32.
#include <ATen/ATen.h>

#include "base/fail.h"
#include "exec/reference/ops.h"
#include "exec/tensor.h"

namespace perigee::exec {
namespace {

using at::Tensor;
using Operands = std::span<const Tensor>;
using Results = std::span<Tensor>;

bool is_half(const Tensor& t) {
  return t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf;
}

// Returns a weight or bias in float32. For an op without it, returns a tensor of `otherwise`.
Tensor wide(Operands in, int position, const std::vector<int64_t>& shape, double otherwise,
            const Tensor& like) {
  if (position >= 0) return in[position].to(at::kFloat);
  return at::full(shape, otherwise, like.options().dtype(at::kFloat));
}

Tensor operand_or_none(Operands in, int position) { return position < 0 ? Tensor() : in[position]; }

}  // namespace

Kernel layer_norm(const Arguments& a) {
  std::vector<std::optional<at::ScalarType>> types(3);
  for (size_t i = 1; i < 3; ++i) {
    if (a.wanted(i)) types[i] = scalar_type(a.type(i).dtype);
  }
  return [self = a.operand("input"), weight = a.optional_operand("weight"),
          bias = a.optional_operand("bias"), shape = a.integers("normalized_shape"),
          eps = a.number("eps"), types](Operands in, Results out, const Draw&) {
    const auto& x = in[self];
    const bool widen = x.is_cpu() && is_half(x);
    auto [y, mean, rstd] = at::native_layer_norm(
        x, shape, widen ? wide(in, weight, shape, 1, x) : operand_or_none(in, weight),
        widen ? wide(in, bias, shape, 0, x) : operand_or_none(in, bias), eps);
    out[0] = std::move(y);
    if (types[1]) out[1] = mean.to(*types[1]);
    if (types[2]) out[2] = rstd.to(*types[2]);
  };
}

Kernel layer_norm_backward(const Arguments& a) {
  const auto* found = a.find("output_mask");
  const auto* masks = found ? std::get_if<std::vector<bool>>(found) : nullptr;
  if (!masks || masks->size() != 3) fail("exec", "{} needs an output_mask of three", a.name());
  return [grad = a.operand("grad_out"), self = a.operand("input"), mean = a.operand("mean"),
          rstd = a.operand("rstd"), weight = a.optional_operand("weight"),
          bias = a.optional_operand("bias"), shape = a.integers("normalized_shape"),
          mask = std::array<bool, 3>{(*masks)[0], (*masks)[1], (*masks)[2]}](
             Operands in, Results out, const Draw&) {
    const auto& x = in[self];
    const bool widen = x.is_cpu() && is_half(x);
    // The kernels read statistics of float32 for half types.
    const auto statistics = [&](int position) {
      return is_half(x) ? in[position].to(at::kFloat) : in[position];
    };
    const auto wanted = [&](int i, int position) { return mask[i] && position >= 0; };
    auto results = at::native_layer_norm_backward(
        in[grad], x, shape, statistics(mean), statistics(rstd),
        widen ? wide(in, weight, shape, 1, x) : operand_or_none(in, weight),
        widen ? wide(in, bias, shape, 0, x) : operand_or_none(in, bias),
        {mask[0], wanted(1, weight), wanted(2, bias)});
    if (mask[0]) out[0] = std::get<0>(results);
    if (wanted(1, weight)) out[1] = std::get<1>(results).to(in[weight].scalar_type());
    if (wanted(2, bias)) out[2] = std::get<2>(results).to(in[bias].scalar_type());
  };
}

}  // namespace perigee::exec
