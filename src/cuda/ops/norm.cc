// Layer norm and RMS norm, also of a sum, and their gradients, also summed with others and rounded.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <optional>

#include "cuda/ops/ops.h"
#include "exec/reference/ops.h"
#include "exec/tensor.h"

namespace perigee::cuda {
namespace {

using at::Tensor;
using Operands = std::span<const Tensor>;
using Results = std::span<Tensor>;

// The operands that a norm and its gradient have in common.
struct NormOperands {
  bool centred;  // layer norm
  int x, weight, bias;
  size_t dims;  // that are normalised, the last ones

  NormOperands(const Arguments& a, std::string_view name)
      : centred(a.find("normalized_shape") != nullptr),
        x(a.operand(name)),
        weight(a.optional_operand("weight")),
        bias(centred ? a.optional_operand("bias") : -1),
        dims(centred ? a.integers("normalized_shape").size() : 1) {}

  // Returns the number of elements that are normalised together.
  int64_t columns(Operands in) const {
    int64_t columns = 1;
    for (auto size : in[x].sizes().slice(in[x].dim() - static_cast<int64_t>(dims))) columns *= size;
    return columns;
  }
  // Returns whether the kernels take the operands: weights of layer norm have the type of x.
  bool fit(Operands in) const {
    const auto type = in[x].scalar_type();
    const auto fits = [&](int vector) {
      return vector < 0 || !centred || in[vector].scalar_type() == type;
    };
    return is_computed(type) && in[x].numel() > 0 && fits(weight) && fits(bias);
  }
  // Returns the vector as the kernels read it, or no tensor.
  Tensor vector(Operands in, int position) const {
    return position < 0 ? Tensor() : in[position].to(in[x].scalar_type()).contiguous();
  }
};

// Returns whether the kernels take rows of this type beside others of `type`.
bool fits_beside(at::ScalarType of, at::ScalarType type) {
  return of == type || (type == at::kFloat && is_half(of));
}

// Returns the norm with its tensors, which the caller keeps; mean: no tensor for RMS norm. `outer`: the
// type of the normalised rows, or of their gradients.
RowNorm describe(const Tensor& x, int64_t columns, const Tensor& weight, const Tensor& bias,
                 const Tensor& mean, const Tensor& rstd, at::ScalarType outer) {
  return {.x = x.const_data_ptr(),
          .weight = data_or_null(weight),
          .bias = data_or_null(bias),
          .mean = mean.defined() ? mean.mutable_data_ptr() : nullptr,
          .rstd = rstd.mutable_data_ptr(),
          .shape = rows_of(x, columns),
          .element = element_of(x.scalar_type()),
          .outer = element_of(outer)};
}

// Returns the number of ranges of rows that the gradient sums. It depends on the shape only, so that
// sums are equal on all GPUs: as many as an H100 has at once, by the registers of the kernel.
int64_t parts_of_norm(Rows shape, size_t element_size) {
  constexpr int64_t kMultiprocessors = 132, kFewestRows = 32, kShortRow = 4096;  // bytes
  const bool is_short = shape.columns * static_cast<int64_t>(element_size) <= kShortRow;
  return std::clamp<int64_t>(shape.rows / kFewestRows, 1, (is_short ? 3 : 2) * kMultiprocessors);
}

}  // namespace

Kernel row_norm(const Arguments& a, const OpContext&) {
  const int other = a.optional_operand("other");
  const size_t first = other < 0 ? 0 : 1;  // the result that is the output
  const NormOperands operands(a, other < 0 && a.find("input") ? "input" : "self");
  // Of output and statistics, where they are needed.
  std::array<std::optional<at::ScalarType>, 3> types;
  for (size_t i = 0; i < types.size(); ++i) {
    if (a.wanted(first + i)) types[i] = exec::scalar_type(a.type(first + i).dtype);
  }
  return [operands, other, first, types, eps = a.number("eps"), math = exec::reference_op(a.op())](
             Operands in, Results out, const Draw& draw) {
    const auto type = in[operands.x].scalar_type(), made = types[0].value_or(type);
    if (!operands.fit(in) || !fits_beside(made, type)) return math(in, out, draw);
    const auto x = in[operands.x].contiguous();
    Tensor added;
    if (other >= 0) {
      const bool fits = fits_beside(in[other].scalar_type(), type);
      added = (fits ? in[other] : in[other].to(type)).contiguous();
      out[0] = at::empty(x.sizes(), x.options());
    }
    const auto weight = operands.vector(in, operands.weight),
               bias = operands.vector(in, operands.bias);
    out[first] = at::empty(x.sizes(), x.options().dtype(made));
    auto shape = x.sizes().vec();
    std::fill(shape.end() - static_cast<int64_t>(operands.dims), shape.end(), 1);
    const auto wide = x.options().dtype(wide_type(type));
    const auto mean = operands.centred ? at::empty(shape, wide) : Tensor(),
               rstd = at::empty(shape, wide);
    const Added sum = {data_or_null(added), element_of((other < 0 ? x : added).scalar_type()),
                       other < 0 ? nullptr : out[0].mutable_data_ptr()};
    row_norm(describe(x, operands.columns(in), weight, bias, mean, rstd, made), sum,
             out[first].mutable_data_ptr(), eps, current_stream());
    check_launch("row_norm");
    const size_t last = operands.centred ? 2 : 1;  // rstd
    if (operands.centred && types[1]) out[first + 1] = mean.to(*types[1]);
    if (types[last]) out[first + last] = rstd.to(*types[last]);
  };
}

Kernel row_norm_backward(const Arguments& a, const OpContext&) {
  const NormOperands operands(a, a.find("input") ? "input" : "self");
  const auto* found = a.find("output_mask");
  const auto mask = found ? std::get<std::vector<bool>>(*found) : std::vector<bool>(3, true);
  const std::array<bool, 3> wanted = {mask[0], mask[1] && operands.weight >= 0 && a.wanted(1),
                                      mask[2] && operands.bias >= 0 && a.wanted(2)};
  // The gradient in a lower precision, and the sum of its rows.
  const size_t low = operands.centred ? 3 : 2;
  const auto low_type = a.wanted(low) ? std::optional(exec::scalar_type(a.type(low).dtype))
                                      : std::nullopt;
  const bool low_sum = low_type && a.wanted(low + 1);
  return [operands, wanted, low, low_type, low_sum,
          grad = a.operand(operands.centred ? "grad_out" : "grad"),
          mean = a.optional_operand("mean"), rstd = a.operand("rstd"),
          other = a.optional_operand("other"),
          math = exec::reference_op(a.op())](Operands in, Results out, const Draw& draw) {
    const auto type = in[operands.x].scalar_type(), wide = wide_type(type);
    if (!operands.fit(in) || (low_type && (type != at::kFloat || !is_half(*low_type)))) {
      return math(in, out, draw);
    }
    const auto x = in[operands.x].contiguous();
    const bool fits = fits_beside(in[grad].scalar_type(), type);
    const auto g = (fits ? in[grad] : in[grad].to(type)).contiguous();
    const auto added = other < 0 ? Tensor() : in[other].to(type).contiguous();
    const auto weight = operands.vector(in, operands.weight);
    const auto means = mean < 0 ? Tensor() : in[mean].to(wide).contiguous(),
               factors = in[rstd].to(wide).contiguous();
    const int64_t columns = operands.columns(in);
    const auto norm = describe(x, columns, weight, Tensor(), means, factors, g.scalar_type());
    if (wanted[0]) out[0] = at::empty(x.sizes(), x.options());
    if (low_type) out[low] = at::empty(x.sizes(), x.options().dtype(*low_type));
    if (wanted[1]) out[1] = at::empty(in[operands.weight].sizes(), in[operands.weight].options());
    if (wanted[2]) out[2] = at::empty(in[operands.bias].sizes(), in[operands.bias].options());
    if (low_sum) out[low + 1] = at::empty({columns}, x.options().dtype(*low_type));
    NormGradients to = {.other = data_or_null(added),
                        .d_x = wanted[0] ? out[0].mutable_data_ptr() : nullptr,
                        .low = low_type ? out[low].mutable_data_ptr() : nullptr,
                        .parts = parts_of_norm(norm.shape, x.element_size())};
    if (low_type) to.low_element = element_of(*low_type);
    const auto total = [&](bool needed, size_t result) { return needed ? out[result] : Tensor(); };
    const ColumnTotals totals(type, to.parts,
                              {total(wanted[1], 1), total(wanted[2], 2), total(low_sum, low + 1)});
    to.of_weight = totals.partials(0);
    to.of_bias = totals.partials(1);
    to.of_low = totals.partials(2);
    row_norm_backward(norm, g.const_data_ptr(), to, current_stream());
    check_launch("row_norm_backward");
    totals.finish();
  };
}

}  // namespace perigee::cuda
