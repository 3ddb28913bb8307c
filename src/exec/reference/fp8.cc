// Emulated eight-bit floats: values are rounded to E4M3 or E5M2 and widened, so that products equal
// those of eight-bit factors accumulated in the wide type.
#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "base/fail.h"
#include "exec/reference/ops.h"
#include "exec/tensor.h"

namespace perigee::exec {
namespace {

using at::Tensor;

struct Format {
  at::ScalarType type;
  float largest;
};

Format format_of(const Arguments& a) {
  const auto name = a.text("format");
  if (name == "e4m3") return {at::kFloat8_e4m3fn, 448.0f};
  if (name == "e5m2") return {at::kFloat8_e5m2, 57344.0f};
  fail("exec", "{} rounds to e4m3 or e5m2, but got \"{}\"", a.name(), name);
}

// Rounds to nearest even, saturating; NaN stays NaN.
Tensor rounded(const Tensor& scaled, const Format& format) {
  return scaled.clamp(-format.largest, format.largest).to(format.type);
}

Tensor round_trip(const Tensor& scaled, const Format& format) {
  return rounded(scaled, format).to(at::kFloat);
}

// Returns the scale that maps the largest magnitude to the format's largest number; 1 where the
// magnitude is 0 or not finite.
Tensor scale_for(const Tensor& amax, const Format& format, int64_t margin) {
  const auto scale = format.largest * std::exp2(-static_cast<double>(margin)) / amax;
  return at::where(at::isfinite(scale).logical_and(amax > 0), scale, at::ones_like(scale));
}

// Returns the largest magnitudes along a dim, which stays, with one element.
Tensor amax_along(const Tensor& t, int64_t dim) {
  if (t.size(dim) > 0) return t.abs().amax(dim, /*keepdim=*/true).to(at::kFloat);
  auto shape = t.sizes().vec();
  shape[dim < 0 ? dim + t.dim() : dim] = 1;
  return at::zeros(shape, t.options().dtype(at::kFloat));
}

Tensor amax_of(const Tensor& t) {
  if (t.numel() == 0) return at::zeros({}, t.options().dtype(at::kFloat));
  return t.abs().amax().to(at::kFloat);
}

}  // namespace

Kernel fp8_amax(const Arguments& a) {
  return [self = a.operand("self"), shape = a.type(0).shape](std::span<const Tensor> in,
                                                             std::span<Tensor> out, const Draw&) {
    out[0] = amax_of(in[self]).expand(shape).contiguous();
  };
}

Kernel fp8_scale(const Arguments& a) {
  return [amax = a.operand("amax"), format = format_of(a), margin = a.integer("margin"),
          recent = a.flag("most_recent"), rank = std::ssize(a.type(0).shape)](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw&) {
    auto largest = in[amax].to(at::kFloat);
    if (largest.dim() > rank) largest = recent ? largest.select(-1, 0) : largest.amax(-1);
    out[0] = scale_for(largest, format, margin);
  };
}

Kernel fp8_history(const Arguments& a) {
  return [self = a.operand("self"), amax = a.operand("amax")](std::span<const Tensor> in,
                                                              std::span<Tensor> out, const Draw&) {
    const auto& history = in[self];
    out[0] = at::cat({in[amax].to(history.scalar_type()).unsqueeze(-1),
                      history.slice(-1, 0, history.size(-1) - 1)},
                     -1);
  };
}

Kernel fp8_held(const Arguments& a) {
  return [self = a.operand("self"), scale = a.operand("scale"), interval = a.integer("interval"),
          counts = a.wanted(1)](std::span<const Tensor> in, std::span<Tensor> out, const Draw&) {
    const auto held = in[self].select(-1, 0), times = in[self].select(-1, 1);
    const auto due = (times < 1).logical_or(times >= interval);
    const auto used = at::where(due, in[scale].to(held.scalar_type()), held);
    out[0] = used.to(in[scale].scalar_type());
    if (counts) out[1] = at::stack({used, at::where(due, at::ones_like(times), times + 1)}, -1);
  };
}

Kernel fp8(const Arguments& a) {
  return [self = a.operand("self"), scale = a.operand("scale"), format = format_of(a)](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw&) {
    const auto x = in[self].contiguous();
    const auto s = in[scale].dim() > 0 ? in[scale].reshape({}) : in[scale];
    out[0] = (round_trip(x.to(at::kFloat) * s, format) / s).to(x.scalar_type());
  };
}

Kernel fp8_cast(const Arguments& a) {
  const auto amax = a.wanted(1) ? std::optional(a.type(1).shape) : std::nullopt;
  return [self = a.operand("self"), scale = a.operand("scale"), format = format_of(a), amax](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw&) {
    out[0] = rounded(in[self].contiguous().to(at::kFloat) * in[scale], format);
    if (amax) out[1] = amax_of(in[self]).expand(*amax).contiguous();
  };
}

Kernel fp8_rows(const Arguments& a) {
  return [self = a.operand("self"), amax = a.operand("amax"), format = format_of(a),
          margin = a.integer("margin")](std::span<const Tensor> in, std::span<Tensor> out,
                                        const Draw&) {
    const auto x = in[self].contiguous();
    const auto scale = scale_for(in[amax], format, margin);
    out[0] = (round_trip(x.to(at::kFloat) * scale, format) / scale).to(x.scalar_type());
  };
}

Kernel fp8_cast_rows(const Arguments& a) {
  return [self = a.operand("self"), amax = a.optional_operand("amax"), format = format_of(a),
          margin = a.integer("margin")](std::span<const Tensor> in, std::span<Tensor> out,
                                        const Draw&) {
    const auto x = in[self].contiguous();
    const auto scale = scale_for(amax < 0 ? amax_along(x, -1) : in[amax], format, margin);
    out[0] = rounded(x.to(at::kFloat) * scale, format);
    out[1] = scale.reciprocal();
  };
}

Kernel fp8_amax_rows(const Arguments& a) {
  return [self = a.operand("self"), dim = a.integer("dim")](std::span<const Tensor> in,
                                                            std::span<Tensor> out, const Draw&) {
    out[0] = amax_along(in[self], dim);
  };
}

// LibTorch's CPU multiplies factors with one scale each.
Kernel scaled_product(const Arguments& a) {
  return [self = a.operand("self"), mat2 = a.operand("mat2"), scale_a = a.operand("scale_a"),
          scale_b = a.operand("scale_b"), bias = a.optional_operand("bias"),
          type = scalar_type(a.type(0).dtype), library = dispatcher_kernel(a.op())](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw& draw) {
    if (in[scale_a].numel() == 1 && in[scale_b].numel() == 1) return library(in, out, draw);
    const auto widened = [&](int factor, int scale) {
      return in[factor].to(at::kFloat) * in[scale];
    };
    const auto product = widened(self, scale_a).mm(widened(mat2, scale_b));
    out[0] = (bias < 0 ? product : product + in[bias].to(at::kFloat)).to(type);
  };
}

Kernel fp8_blocks(const Arguments& a) {
  return [self = a.operand("self"), format = format_of(a), dim = a.integer("dim"),
          block = a.integer("block"), margin = a.integer("margin")](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw&) {
    const auto x = in[self].contiguous();
    out[0] = at::empty_like(x);
    for (int64_t begin = 0; begin < x.size(dim); begin += block) {
      const auto count = std::min(block, x.size(dim) - begin);
      const auto part = x.narrow(dim, begin, count).to(at::kFloat);
      if (part.numel() == 0) continue;
      const auto scale = scale_for(part.abs().amax(dim, /*keepdim=*/true), format, margin);
      out[0].narrow(dim, begin, count).copy_(round_trip(part * scale, format) / scale);
    }
  };
}

}  // namespace perigee::exec
