// Ops that exist only in programs: copies, sums and norms over whole buffers.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/fail.h"
#include "exec/kernels/element.h"
#include "exec/kernels/kernels.h"
#include "exec/kernels/lanes_op.h"
#include "exec/ops/loss_scale_step.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

// out = in * factor, or out += in * factor; each element is read before it is written.
template <class T, class S>
PERIGEE_INLINE void scale_elements(T* out, const S* in, int64_t n, double factor) {
  const auto f = static_cast<Wide<T>>(factor);
  for (int64_t i = 0; i < n; ++i) store(out, i, static_cast<Wide<T>>(load(in, i)) * f);
}
template <class T, class S>
PERIGEE_INLINE void add_elements(T* out, const S* in, int64_t n, double factor) {
  const auto f = static_cast<Wide<T>>(factor);
  for (int64_t i = 0; i < n; ++i)
    store(out, i, load(out, i) + static_cast<Wide<T>>(load(in, i)) * f);
}
template <class T>
PERIGEE_INLINE double square_elements(const T* in, int64_t n) {
  return lane_sum_in_pieces<double>(
      n, [&](int64_t i) PERIGEE_LAMBDA { fetch_ahead<2048>(in, i); },
      [&](int64_t i) PERIGEE_LAMBDA {
        const double v = load(in, i);
        return v * v;
      });
}

#define PERIGEE_PAIR(T, S)                                                  \
  PERIGEE_SIMD void scaled(T* out, const S* in, int64_t n, double factor) { \
    scale_elements<T, S>(out, in, n, factor);                               \
  }                                                                         \
  PERIGEE_SIMD void added(T* out, const S* in, int64_t n, double factor) {  \
    add_elements<T, S>(out, in, n, factor);                                 \
  }
#define PERIGEE_MEMORY(T)        \
  PERIGEE_PAIR(T, float)         \
  PERIGEE_PAIR(T, double)        \
  PERIGEE_PAIR(T, c10::BFloat16) \
  PERIGEE_PAIR(T, c10::Half)     \
  PERIGEE_SQUARES(T)
#define PERIGEE_SQUARES(T) \
  PERIGEE_SIMD double squares(const T* in, int64_t n) { return square_elements<T>(in, n); }
PERIGEE_MEMORY(float)
PERIGEE_MEMORY(double)
PERIGEE_MEMORY(c10::BFloat16)
PERIGEE_PAIR(c10::Half, float)
PERIGEE_PAIR(c10::Half, double)
PERIGEE_PAIR(c10::Half, c10::BFloat16)
PERIGEE_PAIR(c10::Half, c10::Half)
PERIGEE_SQUARES(c10::Half)
#undef PERIGEE_SQUARES
#undef PERIGEE_MEMORY
#undef PERIGEE_PAIR

// Calls f(out's data, in's data, n) for ranges of n elements, on several threads, where both are
// contiguous and vector loops support their types. Returns whether it did.
template <class F>
bool each_pair(const Tensor& out, const Tensor& in, F f) {
  if (!out.is_contiguous() || !in.is_contiguous()) return false;
  bool done = false;
  dispatch_gradient(out.scalar_type(), [&]<class T>() {
    done = dispatch_gradient(in.scalar_type(), [&]<class S>() {
      T* to = out.mutable_data_ptr<T>();
      const S* from = in.const_data_ptr<S>();
      at::parallel_for(0, out.numel(), kGrain, [&](int64_t begin, int64_t end) {
        f(to + begin, from + begin, end - begin);
      });
    });
  });
  return done;
}

// Returns the sum of squares, of pieces of one size each, so that it does not depend on threads.
template <class T>
double sum_squares(const T* in, int64_t n) {
  constexpr int64_t kPiece = int64_t{1} << 15;
  std::vector<double> partials((n + kPiece - 1) / kPiece);
  at::parallel_for(0, std::ssize(partials), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      partials[p] = squares(in + p * kPiece, std::min(kPiece, n - p * kPiece));
    }
  });
  return std::accumulate(partials.begin(), partials.end(), 0.0);
}

// out = in * factor.
void copy_scaled(const Tensor& out, const Tensor& in, double factor) {
  if (factor == 1) {
    // With an additional dim, LibTorch does not transpose through a buffer that it allocates.
    out.unsqueeze(0).copy_(in.unsqueeze(0));
    return;
  }
  const bool done = each_pair(
      out, in, [&](auto* to, const auto* from, int64_t n) { scaled(to, from, n, factor); });
  if (!done) out.zero_().add_(in, factor);
}

}  // namespace

Kernel reshape(const Arguments& a) {
  return [self = a.operand("self"), shape = a.type().shape](std::span<const Tensor> in,
                                                            std::span<Tensor> out, const Draw&) {
    out[0] = at::empty(shape, in[self].options());
    out[0].view(in[self].sizes()).copy_(in[self]);
  };
}

Kernel copy(const Arguments& a) {
  return [self = a.operand("self"), source = a.operand("source"), factor = a.number("scale", 1.0)](
             std::span<const Tensor> in, std::span<Tensor>, const Draw&) {
    copy_scaled(in[self], in[source], factor);
  };
}

Kernel accumulate(const Arguments& a) {
  return [self = a.operand("self"), other = a.operand("other"), factor = a.number("scale", 1.0)](
             std::span<const Tensor> in, std::span<Tensor>, const Draw&) {
    const auto& sum = in[self];
    const auto& term = in[other];
    const bool done = each_pair(
        sum, term, [&](auto* to, const auto* from, int64_t n) { added(to, from, n, factor); });
    if (!done) sum.add_(term, factor);
  };
}

Kernel scale(const Arguments& a) {
  return [self = a.operand("self"), factor = a.operand("scale")](std::span<const Tensor> in,
                                                                 std::span<Tensor>, const Draw&) {
    const auto& t = in[self];
    const double f = scalar(in[factor]);
    if (f == 1) return;
    const bool done = each_pair(
        t, t, [&](auto* to, const auto* from, int64_t n) { scaled(to, from, n, f); });
    if (!done) t.mul_(in[factor]);
  };
}

Kernel squared_norm(const Arguments& a) {
  return [tensors = a.operands("tensors")](std::span<const Tensor> in, std::span<Tensor> out,
                                           const Draw&) {
    double sum = 0;
    for (int position : tensors) {
      const auto& t = in[position];
      const bool done = t.is_contiguous() && dispatch_gradient(t.scalar_type(), [&]<class T>() {
                          sum += sum_squares(t.const_data_ptr<T>(), t.numel());
                        });
      if (!done) {
        fail("exec", "squared_norm needs contiguous floating point tensors, but got {}",
             c10::toString(t.scalar_type()));
      }
    }
    out[0] = at::empty({}, at::kDouble);
    *out[0].mutable_data_ptr<double>() = sum;
  };
}

Kernel clip_scale(const Arguments& a) {
  return [squared = a.operand("squared_norm"), max_norm = a.number("max_norm"),
          whole = a.number("factor", 1.0), loss_scale = a.optional_operand("loss_scale")](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw&) {
    const auto* divisor = loss_scale < 0 ? nullptr : in[loss_scale].const_data_ptr<float>();
    const double factor = gradient_factor(whole, divisor);
    const double norm = factor * std::sqrt(scalar(in[squared]));
    double clipped = clipped_factor(factor, norm, max_norm);
    if (divisor && !is_finite(scalar(in[squared]))) {
      clipped = std::numeric_limits<double>::quiet_NaN();
    }
    double results[] = {norm, clipped};
    for (size_t i = 0; i < std::min<size_t>(out.size(), 2); ++i) {
      out[i] = at::empty({}, at::kDouble);
      *out[i].mutable_data_ptr<double>() = results[i];
    }
  };
}

Kernel update_loss_scale(const Arguments& a) {
  const LossScaleNumbers numbers = {.growth_factor = a.number("growth_factor"),
                                    .backoff_factor = a.number("backoff_factor"),
                                    .growth_interval = a.integer("growth_interval"),
                                    .min_scale = a.number("min_scale", 0.0),
                                    .hysteresis = a.integer("hysteresis", 1)};
  return [numbers, scale = a.operand("loss_scale"), tracker = a.operand("growth_tracker"),
          skipped = a.operand("skipped_steps"), applied = a.operand("applied_step"),
          patience = a.optional_operand("patience"), squared = a.operand("squared_norm"),
          step = a.operand("step"), examined = a.optional_operand("scale")](
             std::span<const Tensor> in, std::span<Tensor>, const Draw&) {
    exec::update_loss_scale(
        {.scale = in[scale].mutable_data_ptr<float>(),
         .growth_tracker = in[tracker].mutable_data_ptr<double>(),
         .skipped_steps = in[skipped].mutable_data_ptr<double>(),
         .applied_step = in[applied].mutable_data_ptr<double>(),
         .patience = patience < 0 ? nullptr : in[patience].mutable_data_ptr<double>()},
        numbers, scalar(in[squared]), scalar(in[step]),
        examined < 0 ? nullptr : in[examined].const_data_ptr<double>());
  };
}

Kernel examine_step(const Arguments& a) {
  return [scale = a.operand("scale"), norm = a.operand("norm"), loss = a.optional_operand("loss"),
          most_loss = a.operand("most_loss"), most_norm = a.operand("most_norm")](
             std::span<const Tensor> in, std::span<Tensor>, const Draw&) {
    const auto passes = [](double value, double most) { return is_finite(value) && value <= most; };
    const bool good = passes(scalar(in[norm]), scalar(in[most_norm])) &&
                      (loss < 0 || passes(in[loss].item<double>(), scalar(in[most_loss])));
    if (!good) {
      *in[scale].mutable_data_ptr<double>() = std::numeric_limits<double>::quiet_NaN();
    }
  };
}

Kernel restore(const Arguments& a) {
  return [self = a.operand("self"), source = a.operand("source"), scale = a.operand("scale")](
             std::span<const Tensor> in, std::span<Tensor>, const Draw&) {
    if (std::isnan(scalar(in[scale]))) in[self].copy_(in[source]);
  };
}

}  // namespace perigee::exec::kernels
