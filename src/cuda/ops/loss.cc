// Cross entropy and RMS norm: kernels with one block per row.
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

Rows rows_of(const Tensor& t) {
  const int64_t columns = t.size(-1);
  return {.rows = columns ? t.numel() / columns : 0, .columns = columns};
}

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
                  losses.mutable_data_ptr(), logsumexp.mutable_data_ptr(), rows_of(x), numbers,
                  element_of(x.scalar_type()), fault, current_stream());
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
                           data_or_null(weights), out[0].mutable_data_ptr(), rows_of(x), numbers,
                           element_of(x.scalar_type()), fault, current_stream());
    check_launch("cross_entropy_backward");
  };
}

Kernel rms_norm(const Arguments& a, const OpContext&) {
  const int other = a.optional_operand("other");
  const size_t first = other < 0 ? 0 : 1;  // the result that is the output
  const auto type = a.wanted(first + 1) ? std::optional(exec::scalar_type(a.type(first + 1).dtype))
                                        : std::nullopt;
  return [self = a.operand("self"), other, first, weight = a.optional_operand("weight"),
          eps = a.number("eps"), type](Operands in, Results out, const Draw&) {
    const auto x = in[self].contiguous();
    const auto added = other < 0 ? Tensor() : in[other].to(x.scalar_type()).contiguous();
    const auto w = weight < 0 ? Tensor() : in[weight].to(x.scalar_type()).contiguous();
    auto shape = x.sizes().vec();
    shape.back() = 1;
    if (other >= 0) out[0] = at::empty(x.sizes(), x.options());
    out[first] = at::empty(x.sizes(), x.options());
    const auto rstd = at::empty(shape, x.options().dtype(wide_type(x.scalar_type())));
    rms_norm(x.const_data_ptr(), data_or_null(added),
             other < 0 ? nullptr : out[0].mutable_data_ptr(), data_or_null(w),
             out[first].mutable_data_ptr(), rstd.mutable_data_ptr(), rows_of(x), eps,
             element_of(x.scalar_type()), current_stream());
    check_launch("rms_norm");
    if (type) out[first + 1] = rstd.to(*type);
  };
}

Kernel rms_norm_backward(const Arguments& a, const OpContext&) {
  return [grad = a.operand("grad"), self = a.operand("self"), weight = a.optional_operand("weight"),
          saved = a.operand("rstd"), other = a.optional_operand("other"),
          weight_wanted = a.wanted(1)](Operands in, Results out, const Draw&) {
    const auto x = in[self].contiguous();
    const auto g = in[grad].to(x.scalar_type()).contiguous();
    const auto added = other < 0 ? Tensor() : in[other].to(x.scalar_type()).contiguous();
    const auto w = weight < 0 ? Tensor() : in[weight].to(x.scalar_type()).contiguous();
    const auto wide = x.options().dtype(wide_type(x.scalar_type()));
    const auto rstd = in[saved].to(wide_type(x.scalar_type())).contiguous();
    const auto element = element_of(x.scalar_type());
    const auto shape = rows_of(x);
    out[0] = at::empty(x.sizes(), x.options());
    // First, since d_self may lie in the memory of an operand.
    if (weight >= 0 && weight_wanted) {
      // The number of parts depends on the shape only, so that sums are equal on all GPUs.
      const int64_t parts = std::clamp<int64_t>(shape.rows / 64, 1, 64);
      const auto partials = at::empty({parts, shape.columns}, wide);
      rms_norm_weight(g.const_data_ptr(), x.const_data_ptr(), rstd.const_data_ptr(),
                      partials.mutable_data_ptr(), parts, shape, element, current_stream());
      out[1] = partials.sum(0).to(in[weight].scalar_type());
    }
    rms_norm_backward(g.const_data_ptr(), x.const_data_ptr(), data_or_null(w),
                      rstd.const_data_ptr(), data_or_null(added), out[0].mutable_data_ptr(), shape,
                      element, current_stream());
    check_launch("rms_norm_backward");
  };
}

}  // namespace perigee::cuda
