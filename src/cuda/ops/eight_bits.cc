// Casts to eight-bit floats, and the largest magnitudes that their scales are made of.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/ops/ops.h"
#include "exec/reference/ops.h"

namespace perigee::cuda {
namespace {

using Operands = std::span<const at::Tensor>;
using Results = std::span<at::Tensor>;

constexpr int64_t kMostColumns = 65535 * 64;  // of a matrix that is cast by columns

// Returns whether a matrix lies in memory by columns.
bool is_transposed(const at::Tensor& x) {
  return x.dim() == 2 && !x.is_contiguous() && x.t().is_contiguous() && x.size(0) <= kMostColumns;
}

// Returns the shape of the largest magnitudes of rows.
std::vector<int64_t> magnitudes_shape(const at::Tensor& x) {
  auto shape = x.sizes().vec();
  shape.back() = 1;
  return shape;
}

Rows rows_and_columns(const at::Tensor& x) {
  return {c10::multiply_integers(x.sizes().slice(0, x.dim() - 1)), x.size(-1)};
}

// Returns the largest magnitudes of the rows of x, or of its columns.
at::Tensor magnitudes(const at::Tensor& x, bool of_columns, at::IntArrayRef shape) {
  const auto options = x.options().dtype(at::kFloat);
  const auto made = at::empty(shape, options);
  auto* out = made.mutable_data_ptr<float>();
  const auto element = element_of(x.scalar_type());
  if (!of_columns) {
    magnitudes_of_rows(x.const_data_ptr(), out, rows_and_columns(x), element, current_stream());
    return made;
  }
  const int64_t parts = parts_of(x.size(0));
  const auto partials = at::empty({parts, x.size(1)}, options);
  magnitudes_of_columns(x.const_data_ptr(), partials.mutable_data_ptr<float>(), parts, out,
                        rows_and_columns(x), element, current_stream());
  return made;
}

}  // namespace

Kernel fp8_cast(const Arguments& a, const OpContext&) {
  const auto format = a.text("format");
  if (format != "e4m3" && format != "e5m2") return {};
  const auto amax = a.wanted(1) ? std::optional(a.type(1).shape) : std::nullopt;  // one element
  return [self = a.operand("self"), scale = a.operand("scale"), wide = format == "e5m2", amax,
          math = exec::reference_op(a.op())](Operands in, Results out, const Draw& draw) {
    const auto type = in[self].scalar_type();
    if (!is_computed(type)) return math(in, out, draw);
    const bool transposed = is_transposed(in[self]);
    const auto x = transposed ? in[self].t() : in[self].contiguous();
    const Rows shape = transposed ? Rows{x.size(0), x.size(1)} : Rows{1, x.numel()};
    out[0] = at::empty(in[self].sizes(),
                       x.options().dtype(wide ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn));
    CastMagnitude magnitude;
    at::Tensor workspace;
    if (amax) {
      out[1] = at::empty(*amax, x.options().dtype(at::kFloat));
      workspace = at::empty({workspace_of_cast(shape, transposed)}, out[1].options());
      magnitude = {workspace.mutable_data_ptr<float>(), out[1].mutable_data_ptr<float>()};
    }
    const auto* factor = in[scale].const_data_ptr<float>();
    if (transposed) {
      cast_transposed_to_eight_bits(x.const_data_ptr(), factor, out[0].mutable_data_ptr(), shape,
                                    element_of(type), wide, magnitude, current_stream());
    } else {
      cast_to_eight_bits(x.const_data_ptr(), factor, out[0].mutable_data_ptr(), x.numel(),
                         element_of(type), wide, magnitude, current_stream());
    }
    check_launch("fp8_cast");
  };
}

Kernel fp8_amax(const Arguments& a, const OpContext&) {
  return [self = a.operand("self"), shape = a.type(0).shape, math = exec::reference_op(a.op())](
             Operands in, Results out, const Draw& draw) {
    constexpr int64_t kElementsOfPart = 1 << 14, kMostParts = 1024;
    const auto type = in[self].scalar_type();
    if (!is_computed(type)) return math(in, out, draw);
    // The elements of a matrix that lies by columns, in any order.
    const auto x = is_transposed(in[self]) ? in[self].t() : in[self].contiguous();
    const int64_t parts = std::clamp<int64_t>(x.numel() / kElementsOfPart, 1, kMostParts);
    out[0] = at::empty(shape, x.options().dtype(at::kFloat));  // one element
    const auto partials = at::empty({parts}, out[0].options());
    largest_magnitude(x.const_data_ptr(), partials.mutable_data_ptr<float>(), parts,
                      out[0].mutable_data_ptr<float>(), x.numel(), element_of(type),
                      current_stream());
    check_launch("fp8_amax");
  };
}

Kernel fp8_cast_rows(const Arguments& a, const OpContext&) {
  const auto format = a.text("format");
  if (format != "e4m3" && format != "e5m2") return {};
  const bool e5m2 = format == "e5m2";
  const auto margin = static_cast<int>(a.integer("margin"));
  const EightBits eight_bits = {e5m2, std::ldexp(e5m2 ? 57344.0f : 448.0f, -margin)};
  return [self = a.operand("self"), amax = a.optional_operand("amax"), eight_bits,
          math = exec::reference_op(a.op())](Operands in, Results out, const Draw& draw) {
    const auto type = in[self].scalar_type();
    if (!is_computed(type)) return math(in, out, draw);
    const bool transposed = is_transposed(in[self]);
    const auto x = transposed ? in[self].t() : in[self].contiguous();
    const auto narrow = eight_bits.e5m2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
    out[0] = at::empty(in[self].sizes(), x.options().dtype(narrow));
    out[1] = at::empty(magnitudes_shape(in[self]), x.options().dtype(at::kFloat));
    const auto cast = transposed ? cast_columns_to_eight_bits : cast_rows_to_eight_bits;
    const auto given = amax >= 0    ? in[amax].contiguous()
                       : transposed ? magnitudes(x, transposed, out[1].sizes())
                                    : at::Tensor();
    cast(x.const_data_ptr(), given.defined() ? given.const_data_ptr<float>() : nullptr,
         out[0].mutable_data_ptr(), out[1].mutable_data_ptr<float>(), rows_and_columns(x),
         element_of(type), eight_bits, current_stream());
    check_launch("fp8_cast_rows");
  };
}

Kernel fp8_amax_rows(const Arguments& a, const OpContext&) {
  return [self = a.operand("self"), dim = a.integer("dim"), math = exec::reference_op(a.op())](
             Operands in, Results out, const Draw& draw) {
    if (!is_computed(in[self].scalar_type()) || dim != in[self].dim() - 1) {
      return math(in, out, draw);
    }
    const bool transposed = is_transposed(in[self]);
    out[0] = magnitudes(transposed ? in[self].t() : in[self].contiguous(), transposed,
                        magnitudes_shape(in[self]));
    check_launch("fp8_amax_rows");
  };
}

}  // namespace perigee::cuda
