// Casts to eight-bit floats, and the largest magnitudes that their scales are made of.
#include <ATen/ATen.h>

#include <algorithm>

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

}  // namespace perigee::cuda
