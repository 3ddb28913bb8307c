// Layer norm of float32, float64 and bfloat16, which is computed in float32.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
#include <optional>

#include "exec/kernels/kernels.h"
#include "exec/kernels/norm/residual.h"
#include "exec/reference/ops.h"
#include "exec/tensor.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

// Rows of n elements, of type Y where they are normalised. `residual` and `sum`: where the norm is
// that of a sum.
template <class T, class Y>
struct Forward {
  const T* x;
  Residual residual;
  T* sum;
  const Wide<T>*weight, *bias;  // [n]
  Y* y;
  Wide<T>*mean, *rstd;  // by row
  int64_t n;
  Wide<T> eps;
};

template <class T, class Y>
PERIGEE_INLINE void forward_rows(const Forward<T, Y>& f, int64_t begin, int64_t end) {
  using W = Wide<T>;
  const int64_t n = f.n;
  const W *weight = f.weight, *bias = f.bias;
  for (int64_t row = begin; row < end; ++row) {
    const T* from = f.x + row * n;
    if (f.residual.data) {
      write_row(
          f.sum + row * n, [&](int64_t i) PERIGEE_LAMBDA { return load(from, i); }, f.residual,
          row * n, n);
      from = f.sum + row * n;
    }
    const W mean = lane_sum<W>(n, [&](int64_t i) PERIGEE_LAMBDA { return load(from, i); }) /
                   static_cast<W>(n);
    const W squares = lane_sum<W>(n, [&](int64_t i) PERIGEE_LAMBDA {
      const W centred = load(from, i) - mean;
      return centred * centred;
    });
    const W rstd = 1 / root(squares / static_cast<W>(n) + f.eps);
    f.mean[row] = mean;
    f.rstd[row] = rstd;
    Y* to = f.y + row * n;
    for (int64_t i = 0; i < n; ++i) {
      store(to, i, (load(from, i) - mean) * rstd * weight[i] + bias[i]);
    }
  }
}

// `residual`: added to d_x, which may be the memory of grad, of x or of the residual.
template <class T, class G>
struct Backward {
  const G* grad;
  const T* x;
  const Wide<T>*mean, *rstd;  // by row
  const Wide<T>* weight;      // [n]
  Residual residual;
  T* d_x;
  LowRows low;  // d_x in a lower precision
  int64_t n;
};

// Sums over rows, [n] each; `low`: of d_x in a lower precision, or nullptr.
template <class W>
struct Sums {
  W *weight, *bias;
  float* low;
};

// With h the normalised row: d_x = rstd (g w - mean(g w) - h mean(g w h)).
template <class T, class G>
PERIGEE_INLINE void backward_rows(const Backward<T, G>& b, const Sums<Wide<T>>& sums, int64_t begin,
                                  int64_t end) {
  using W = Wide<T>;
  const int64_t n = b.n;
  const W* weight = b.weight;
  W *d_weight = sums.weight, *d_bias = sums.bias;
  for (int64_t row = begin; row < end; ++row) {
    const G* grad = b.grad + row * n;
    const T* from = b.x + row * n;
    const W mean = b.mean[row], rstd = b.rstd[row];
    const auto scaled = [&](int64_t i) PERIGEE_LAMBDA { return load(grad, i) * weight[i]; };
    const auto centred = [&](int64_t i) PERIGEE_LAMBDA { return load(from, i) - mean; };
    const W sum = lane_sum<W>(n, scaled) / static_cast<W>(n);
    const W dot = lane_sum<W>(n, [&](int64_t i) PERIGEE_LAMBDA { return scaled(i) * centred(i); });
    const W slope = dot * rstd * rstd / static_cast<W>(n);
    T* to = b.d_x + row * n;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      d_weight[i] += load(grad, i) * centred(i) * rstd;
    }
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) d_bias[i] += load(grad, i);
    write_row(
        to, [&](int64_t i) PERIGEE_LAMBDA { return (scaled(i) - sum - centred(i) * slope) * rstd; },
        b.residual, row * n, n);
    b.low.write(to, row * n, n, sums.low);
  }
}

// O: the type of normalised rows and of their gradients.
#define PERIGEE_LAYER_NORM(T, O)                                                                \
  PERIGEE_SIMD void forward(const Forward<T, O>& f, int64_t begin, int64_t end) {               \
    forward_rows(f, begin, end);                                                                \
  }                                                                                             \
  PERIGEE_SIMD void backward(const Backward<T, O>& b, const Sums<Wide<T>>& sums, int64_t begin, \
                             int64_t end) {                                                     \
    backward_rows(b, sums, begin, end);                                                         \
  }
PERIGEE_LAYER_NORM(float, float)
PERIGEE_LAYER_NORM(float, c10::BFloat16)
PERIGEE_LAYER_NORM(double, double)
PERIGEE_LAYER_NORM(c10::BFloat16, c10::BFloat16)
#undef PERIGEE_LAYER_NORM

// Returns an operand [n] in the type of the computation; `otherwise` where the op has none.
Tensor wide(std::span<const Tensor> in, int operand, int64_t n, double otherwise,
            const at::TensorOptions& options) {
  if (operand < 0) return at::full({n}, otherwise, options);
  return in[operand].to(options.dtype().toScalarType()).reshape({n}).contiguous();
}

}  // namespace

Kernel layer_norm(const Arguments& a) {
  const int other = a.optional_operand("other");
  const size_t first = other < 0 ? 0 : 1;  // the result that is the output
  // Of output, mean and rstd, where they are needed.
  std::array<std::optional<at::ScalarType>, 3> types;
  for (size_t i = 0; i < types.size(); ++i) {
    if (a.wanted(first + i)) types[i] = scalar_type(a.type(first + i).dtype);
  }
  return [self = a.operand(other < 0 ? "input" : "self"), other, first, types,
          weight = a.optional_operand("weight"), bias = a.optional_operand("bias"),
          normalized = a.integers("normalized_shape"), eps = a.number("eps"),
          math = reference_op(a.op())](std::span<const Tensor> in, std::span<Tensor> out,
                                       const Draw& draw) {
    const auto type = in[self].scalar_type();
    const int64_t n = c10::multiply_integers(normalized);
    const auto made = types[0].value_or(type);
    if (n == 0 || !are_computed(in, self, other) || !fits_beside(made, type)) {
      return math(in, out, draw);
    }
    const auto x = in[self].contiguous();
    const auto added = other < 0 ? Tensor() : in[other].contiguous();
    const auto options = x.options().dtype(wide_type(type));
    auto shape = x.sizes().vec();
    std::fill(shape.end() - std::ssize(normalized), shape.end(), 1);
    if (other >= 0) out[0] = at::empty(x.sizes(), x.options());
    out[first] = at::empty(x.sizes(), x.options().dtype(made));
    const auto mean = at::empty(shape, options), rstd = at::empty(shape, options);
    const auto w = wide(in, weight, n, 1, options), b = wide(in, bias, n, 0, options);
    dispatch_element(type, [&]<class T>() {
      dispatch_beside<T>(made, [&]<class Y>() {
        using W = Wide<T>;
        const Forward<T, Y> f{x.const_data_ptr<T>(),
                              other < 0 ? Residual() : residual_of(added, type),
                              other < 0 ? nullptr : out[0].mutable_data_ptr<T>(),
                              w.const_data_ptr<W>(),
                              b.const_data_ptr<W>(),
                              out[first].mutable_data_ptr<Y>(),
                              mean.mutable_data_ptr<W>(),
                              rstd.mutable_data_ptr<W>(),
                              n,
                              static_cast<W>(eps)};
        at::parallel_for(0, x.numel() / n, 1 + 32768 / n,
                         [&](int64_t begin, int64_t end) { forward(f, begin, end); });
      });
    });
    if (types[1]) out[first + 1] = mean.to(*types[1]);
    if (types[2]) out[first + 2] = rstd.to(*types[2]);
  };
}

Kernel layer_norm_backward(const Arguments& a) {
  const int other = a.optional_operand("other");
  const auto* masks = std::get_if<std::vector<bool>>(a.find("output_mask"));
  if (!masks || masks->size() != 3 || !(*masks)[0]) return {};
  return [grad = a.operand("grad_out"), self = a.operand("input"), mean = a.operand("mean"),
          rstd = a.operand("rstd"), weight = a.optional_operand("weight"),
          bias = a.optional_operand("bias"), other, low_results = LowResults(a, 3),
          weight_wanted = (*masks)[1], bias_wanted = (*masks)[2],
          normalized = a.integers("normalized_shape"), math = reference_op(a.op())](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw& draw) {
    const auto type = in[self].scalar_type();
    const int64_t n = c10::multiply_integers(normalized);
    if (n == 0 || !are_computed(in, self, other) || !low_results.fits(type)) {
      return math(in, out, draw);
    }
    const bool fits = fits_beside(in[grad].scalar_type(), type);
    const auto x = in[self].contiguous(), g = (fits ? in[grad] : in[grad].to(type)).contiguous();
    const auto added = other < 0 ? Tensor() : in[other].contiguous();
    const auto options = x.options().dtype(wide_type(type));
    out[0] = at::empty(x.sizes(), x.options());
    const auto w = wide(in, weight, n, 1, options);
    const auto wide_mean = in[mean].to(options.dtype().toScalarType()).contiguous();
    const auto wide_rstd = in[rstd].to(options.dtype().toScalarType()).contiguous();
    // Each thread sums its rows; the partial sums are added in a fixed order.
    const int64_t rows = x.numel() / n;
    const int64_t parts = std::clamp<int64_t>(rows, 1, at::get_num_threads());
    const auto weights = at::zeros({parts, n}, options), biases = at::zeros({parts, n}, options);
    auto low = low_results;
    low.begin(x, parts, n, out);
    dispatch_element(type, [&]<class T>() {
      dispatch_beside<T>(g.scalar_type(), [&]<class G>() {
        using W = Wide<T>;
        const Backward<T, G> b{g.const_data_ptr<G>(),
                               x.const_data_ptr<T>(),
                               wide_mean.const_data_ptr<W>(),
                               wide_rstd.const_data_ptr<W>(),
                               w.const_data_ptr<W>(),
                               other < 0 ? Residual() : residual_of(added, type),
                               out[0].mutable_data_ptr<T>(),
                               low.rows(),
                               n};
        W *d_weight = weights.mutable_data_ptr<W>(), *d_bias = biases.mutable_data_ptr<W>();
        float* of_low = low.sums();
        at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
          for (int64_t p = first; p < last; ++p) {
            const Sums<W> sums{d_weight + p * n, d_bias + p * n, of_low ? of_low + p * n : nullptr};
            backward(b, sums, rows * p / parts, rows * (p + 1) / parts);
          }
        });
      });
    });
    const auto total = [&](const Tensor& sums, int operand) {
      return (parts == 1 ? sums : sums.sum(0)).view(normalized).to(in[operand].scalar_type());
    };
    if (weight_wanted && weight >= 0) out[1] = total(weights, weight);
    if (bias_wanted && bias >= 0) out[2] = total(biases, bias);
    low.end(out);
  };
}

}  // namespace perigee::exec::kernels
