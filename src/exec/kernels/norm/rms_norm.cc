#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <optional>

#include "exec/kernels/kernels.h"
#include "exec/kernels/norm/residual.h"
#include "exec/reference/ops.h"
#include "exec/tensor.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

// y = x * rstd * weight for rows [begin, end) of n elements; rstd [rows]. With a residual, x + residual
// stands for x, and is written to `sum`.
template <class T, class Y>
PERIGEE_INLINE void forward_rows(const T* x, const Residual& residual, T* sum, const T* weight,
                                 Y* y, Wide<T>* rstd, int64_t begin, int64_t end, int64_t n,
                                 Wide<T> eps) {
  using W = Wide<T>;
  for (int64_t row = begin; row < end; ++row) {
    const T* from = x + row * n;
    Y* to = y + row * n;
    if (residual.data) {
      write_row(
          sum + row * n, [&](int64_t i) PERIGEE_LAMBDA { return load(from, i); }, residual, row * n,
          n);
      from = sum + row * n;
    }
    const W squares = lane_sum<W>(
        n, [&](int64_t i) PERIGEE_LAMBDA { return load(from, i) * load(from, i); });
    const W r = 1 / std::sqrt(squares / static_cast<W>(n) + eps);
    rstd[row] = r;
    if (weight) {
      for (int64_t i = 0; i < n; ++i) store(to, i, load(from, i) * r * load(weight, i));
    } else {
      for (int64_t i = 0; i < n; ++i) store(to, i, load(from, i) * r);
    }
  }
}

// What the gradient reads and makes; d_self may be the memory of g, of x or of the residual.
template <class T, class G>
struct RmsBackward {
  const G* g;
  const T *x, *weight;
  const Wide<T>* rstd;  // by row
  Residual residual;
  T* d_self;
  LowRows low;  // d_self in a lower precision
  int64_t n;
};

// d_self = (g w - x rstd mean(g w x rstd)) rstd + residual, and adds g x rstd to d_weight [n], and rows
// of `low` to of_low [n]. Sums may be nullptr.
template <class T, class G>
PERIGEE_INLINE void backward_rows(const RmsBackward<T, G>& b, Wide<T>* d_weight, float* of_low,
                                  int64_t begin, int64_t end) {
  using W = Wide<T>;
  const int64_t n = b.n;
  const T* weight = b.weight;
  const Residual& residual = b.residual;
  for (int64_t row = begin; row < end; ++row) {
    const G* grad = b.g + row * n;
    const T* from = b.x + row * n;
    T* to = b.d_self + row * n;
    const W r = b.rstd[row];
    if (weight) {
      const auto scaled = [&](int64_t i) PERIGEE_LAMBDA { return load(grad, i) * load(weight, i); };
      const W dot = lane_sum<W>(
          n, [&](int64_t i) PERIGEE_LAMBDA { return scaled(i) * load(from, i); });
      const W mean = dot * r * r / static_cast<W>(n);
      if (d_weight) {
        for (int64_t i = 0; i < n; ++i) d_weight[i] += load(grad, i) * load(from, i) * r;
      }
      write_row(
          to, [&](int64_t i) PERIGEE_LAMBDA { return (scaled(i) - load(from, i) * mean) * r; },
          residual, row * n, n);
    } else {
      const W dot = lane_sum<W>(
          n, [&](int64_t i) PERIGEE_LAMBDA { return load(grad, i) * load(from, i); });
      const W mean = dot * r * r / static_cast<W>(n);
      write_row(
          to, [&](int64_t i) PERIGEE_LAMBDA { return (load(grad, i) - load(from, i) * mean) * r; },
          residual, row * n, n);
    }
    b.low.write(to, row * n, n, of_low);
  }
}

// O: the type of normalised rows and of their gradients.
#define PERIGEE_RMS_NORM(T, O)                                                                   \
  PERIGEE_SIMD void forward(const T* x, const Residual& residual, T* sum, const T* w, O* y,      \
                            Wide<T>* rstd, int64_t begin, int64_t end, int64_t n, Wide<T> eps) { \
    forward_rows<T, O>(x, residual, sum, w, y, rstd, begin, end, n, eps);                        \
  }                                                                                              \
  PERIGEE_SIMD void backward(const RmsBackward<T, O>& b, Wide<T>* d_weight, float* of_low,       \
                             int64_t begin, int64_t end) {                                       \
    backward_rows(b, d_weight, of_low, begin, end);                                              \
  }
PERIGEE_RMS_NORM(float, float)
PERIGEE_RMS_NORM(float, c10::BFloat16)
PERIGEE_RMS_NORM(double, double)
PERIGEE_RMS_NORM(c10::BFloat16, c10::BFloat16)
#undef PERIGEE_RMS_NORM

template <class T>
const T* data_or_null(const Tensor& t) {
  return t.defined() ? t.const_data_ptr<T>() : nullptr;
}

}  // namespace

Kernel rms_norm(const Arguments& a) {
  const int other = a.optional_operand("other");
  const size_t first = other < 0 ? 0 : 1;  // the result that is the output
  const auto output = a.wanted(first) ? std::optional(scalar_type(a.type(first).dtype))
                                      : std::nullopt;
  return [self = a.operand("self"), other, first, output, weight = a.optional_operand("weight"),
          eps = a.number("eps"), math = reference_op(a.op())](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw& draw) {
    const auto type = in[self].scalar_type();
    const auto made = output.value_or(type);
    if (!are_computed(in, self, other) || !fits_beside(made, type)) {
      return math(in, out, draw);
    }
    const auto x = in[self].contiguous();
    const auto added = other < 0 ? Tensor() : in[other].contiguous();
    const auto w = weight < 0 ? Tensor() : in[weight].to(x.scalar_type()).contiguous();
    const int64_t n = x.size(-1), rows = n ? x.numel() / n : 0;
    if (other >= 0) out[0] = at::empty(x.sizes(), x.options());
    out[first] = at::empty(x.sizes(), x.options().dtype(made));
    auto shape = x.sizes().vec();
    shape.back() = 1;
    auto rstd = at::empty(shape, x.options().dtype(wide_type(x.scalar_type())));
    dispatch_element(x.scalar_type(), [&]<class T>() {
      const T* from = x.const_data_ptr<T>();
      const auto residual = other < 0 ? Residual() : residual_of(added, type);
      T* sum = other < 0 ? nullptr : out[0].mutable_data_ptr<T>();
      auto* r = rstd.mutable_data_ptr<Wide<T>>();
      dispatch_beside<T>(made, [&]<class Y>() {
        Y* to = out[first].mutable_data_ptr<Y>();
        at::parallel_for(0, rows, 1 + 32768 / std::max<int64_t>(n, 1),
                         [&](int64_t begin, int64_t end) {
                           forward(from, residual, sum, data_or_null<T>(w), to, r, begin, end, n,
                                   static_cast<Wide<T>>(eps));
                         });
      });
    });
    if (out.size() > first + 1) out[first + 1] = std::move(rstd);
  };
}

Kernel rms_norm_backward(const Arguments& a) {
  return [grad = a.operand("grad"), self = a.operand("self"), weight = a.optional_operand("weight"),
          saved = a.operand("rstd"), other = a.optional_operand("other"),
          low_results = LowResults(a, 2), math = reference_op(a.op())](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw& draw) {
    const auto type = in[self].scalar_type();
    if (!are_computed(in, self, other) || !low_results.fits(type)) {
      return math(in, out, draw);
    }
    const auto x = in[self].contiguous();
    const auto added = other < 0 ? Tensor() : in[other].contiguous();
    const bool fits = fits_beside(in[grad].scalar_type(), type);
    const auto g = (fits ? in[grad] : in[grad].to(type)).contiguous();
    const auto w = weight < 0 ? Tensor() : in[weight].to(x.scalar_type()).contiguous();
    const auto wide = x.options().dtype(wide_type(x.scalar_type()));
    const auto rstd = in[saved].to(wide.dtype().toScalarType()).contiguous();
    const int64_t n = x.size(-1), rows = n ? x.numel() / n : 0;
    out[0] = at::empty(x.sizes(), x.options());
    // Each thread sums its rows; the partial sums are added in a fixed order.
    const int64_t parts = std::clamp<int64_t>(rows, 1, at::get_num_threads());
    const auto partial = weight < 0 ? Tensor() : at::zeros({parts, n}, wide);
    auto low = low_results;
    low.begin(x, parts, n, out);
    dispatch_element(x.scalar_type(), [&]<class T>() {
      dispatch_beside<T>(g.scalar_type(), [&]<class G>() {
        using W = Wide<T>;
        const RmsBackward<T, G> b{g.const_data_ptr<G>(),
                                  x.const_data_ptr<T>(),
                                  data_or_null<T>(w),
                                  rstd.const_data_ptr<W>(),
                                  other < 0 ? Residual() : residual_of(added, type),
                                  out[0].mutable_data_ptr<T>(),
                                  low.rows(),
                                  n};
        W* sums = partial.defined() ? partial.mutable_data_ptr<W>() : nullptr;
        float* of_low = low.sums();
        at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
          for (int64_t p = first; p < last; ++p) {
            backward(b, sums ? sums + p * n : nullptr, of_low ? of_low + p * n : nullptr,
                     rows * p / parts, rows * (p + 1) / parts);
          }
        });
      });
    });
    low.end(out);
    if (weight >= 0 && out.size() > 1) {
      out[1] = parts == 1 ? partial.view({n}) : partial.sum(0);
      if (out[1].scalar_type() != in[weight].scalar_type())
        out[1] = out[1].to(in[weight].scalar_type());
    }
  };
}

}  // namespace perigee::exec::kernels
