// Cross entropy: kernels with one block per row.
#include <ATen/ATen.h>

#include <algorithm>

#include "cuda/ops/ops.h"
#include "cuda/ops/products.h"
#include "exec/tensor.h"

namespace perigee::cuda {
namespace {

using at::Tensor;
using Operands = std::span<const Tensor>;
using Results = std::span<Tensor>;

// The operands of a loss in the types and layouts that the kernels read.
struct Loss {
  int logits, target, weight;
  LossNumbers numbers;

  explicit Loss(const Arguments& a)
      : logits(a.operand("logits")),
        target(a.operand("target")),
        weight(a.optional_operand("weight")),
        numbers{.ignore_index = a.integer("ignore_index", -100),
                .smoothing = a.number("label_smoothing", 0.0)} {}

  // Returns the logits with contiguous rows.
  Tensor rows(Operands in) const {
    const auto& x = in[logits];
    return x.stride(1) == 1 && x.stride(0) >= x.size(1) ? x : x.contiguous();
  }
  Tensor labels(Operands in) const { return in[target].to(at::kLong).contiguous(); }
  Tensor weights(Operands in) const {
    return weight < 0 ? Tensor() : in[weight].to(in[logits].scalar_type()).contiguous();
  }
};

}  // namespace

Kernel cross_entropy(const Arguments& a, const OpContext& context) {
  const auto type = a.wanted(0) ? std::optional(exec::scalar_type(a.type(0).dtype)) : std::nullopt;
  return [loss = Loss(a), type, fault = context.fault](Operands in, Results out, const Draw&) {
    const auto x = loss.rows(in);
    auto numbers = loss.numbers;
    numbers.stride = x.stride(0);
    const auto labels = loss.labels(in), weights = loss.weights(in);
    const auto wide = x.options().dtype(wide_type(x.scalar_type()));
    const auto losses = at::empty({x.size(0)}, wide);
    auto logsumexp = at::empty({x.size(0)}, wide);
    cross_entropy(x.const_data_ptr(), labels.const_data_ptr<int64_t>(), data_or_null(weights),
                  losses.mutable_data_ptr(), logsumexp.mutable_data_ptr(), rows_of(x, x.size(-1)),
                  numbers, element_of(x.scalar_type()), fault, current_stream());
    check_launch("cross_entropy");
    out[0] = losses.to(type.value_or(x.scalar_type()));
    if (out.size() > 1) out[1] = std::move(logsumexp);
  };
}

Kernel cross_entropy_backward(const Arguments& a, const OpContext& context) {
  return [loss = Loss(a), grad = a.operand("grad"), saved = a.operand("logsumexp"),
          fault = context.fault](Operands in, Results out, const Draw&) {
    const auto x = loss.rows(in);
    const auto labels = loss.labels(in), weights = loss.weights(in);
    const auto wide = wide_type(x.scalar_type());
    const auto upstream = in[grad].to(wide).contiguous();
    const auto logsumexp = in[saved].to(wide).contiguous();
    out[0] = empty_rows(x.size(0), x.size(1), x.options());
    auto numbers = loss.numbers;
    numbers.stride = x.stride(0);
    numbers.d_stride = out[0].stride(0);
    cross_entropy_backward(upstream.const_data_ptr(), x.const_data_ptr(),
                           labels.const_data_ptr<int64_t>(), logsumexp.const_data_ptr(),
                           data_or_null(weights), out[0].mutable_data_ptr(), rows_of(x, x.size(-1)),
                           numbers, element_of(x.scalar_type()), fault, current_stream());
    check_launch("cross_entropy_backward");
  };
}

}  // namespace perigee::cuda
