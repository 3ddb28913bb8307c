// GELU of float32 and bfloat16, computed in float32; branch-free erf and tanh.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "exec/kernels/kernels.h"
#include "exec/kernels/lanes_op.h"
#include "exec/reference/ops.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

constexpr float kRootHalf = 0.70710678118654752f;
constexpr float kDensity = 0.39894228040143268f;  // 1 / sqrt(2 pi)
constexpr float kInner = 0.79788456080286536f;    // sqrt(2 / pi)
constexpr float kCubic = 0.044715f;

// erf(x) within 4e-7, as a quotient of polynomials (Eigen's coefficients); NaN stays NaN.
PERIGEE_INLINE Floats erf(Floats x) {
  const Floats one = splat(3.832506856900711f);  // erf rounds to 1 from here on
  x = x > one ? one : x;
  x = x < -one ? -one : x;
  const Floats x2 = x * x;
  Floats p = x2 * 0.00022905065861350646f + 0.0034082910107109506f;
  p = p * x2 + 0.050955695062380861f;
  p = p * x2 + 0.18520832239976145f;
  p = p * x2 + 1.128379143519084f;
  Floats q = x2 * -1.1791602954361697e-7f + 0.000023547966471313185f;
  q = q * x2 + 0.0010179625278914885f;
  q = q * x2 + 0.014070470171167667f;
  q = q * x2 + 0.11098505178285362f;
  q = q * x2 + 0.49746925110067538f;
  q = q * x2 + 1.0f;
  return x * p / q;
}

// The erf form.
struct Exact {
  static PERIGEE_INLINE Floats value(Floats x) { return x * 0.5f * (1.0f + erf(x * kRootHalf)); }
  // The density's exponential is a factor of the distribution's tail, too: Abramowitz and Stegun,
  // formula 26.2.17, within 7.5e-8.
  static PERIGEE_INLINE Floats slope(Floats x) {
    const Floats size = x < 0 ? -x : x;
    const Floats density = exp_negative(x * x * -0.5f) * kDensity;
    const Floats t = 1.0f / (size * 0.2316419f + 1.0f);
    Floats p = t * 1.330274429f - 1.821255978f;
    p = p * t + 1.781477937f;
    p = p * t - 0.356563782f;
    p = p * t + 0.319381530f;
    const Floats tail = density * p * t;
    return (x < 0 ? tail : 1.0f - tail) + x * density;
  }
};

// The tanh form, by (1 + tanh(z / 2)) / 2 = 1 / (1 + exp(-z)).
struct Approximate {
  static PERIGEE_INLINE Floats z_of(Floats x) { return x * (2 * kInner) * (x * x * kCubic + 1.0f); }
  static PERIGEE_INLINE Floats value(Floats x) {
    const Floats z = z_of(x), e = exp_negative(z < 0 ? z : -z);
    return x * (z < 0 ? e : splat(1)) / (1.0f + e);
  }
  static PERIGEE_INLINE Floats slope(Floats x) {
    const Floats z = z_of(x), e = exp_negative(z < 0 ? z : -z), t = 1.0f / (1.0f + e);
    const Floats z_slope = x * x * (6 * kInner * kCubic) + 2 * kInner;
    return (z < 0 ? e : splat(1)) * t + e * t * t * x * z_slope;
  }
};

template <class Form, class T>
PERIGEE_INLINE void forward_elements(const T* x, T* y, int64_t n) {
  each_lanes(n, [&](int64_t i, auto count) PERIGEE_LAMBDA {
    store_lanes(y + i, Form::value(load_lanes(x + i, count, 0)), count);
  });
}
template <class Form, class T>
PERIGEE_INLINE void backward_elements(const T* g, const T* x, T* d, int64_t n) {
  each_lanes(n, [&](int64_t i, auto count) PERIGEE_LAMBDA {
    store_lanes(d + i, load_lanes(g + i, count, 0) * Form::slope(load_lanes(x + i, count, 0)),
                count);
  });
}

// Adds each row of d to `sum` [n] while it is in the cache.
template <class Form, class T>
PERIGEE_INLINE void backward_rows(const T* g, const T* x, T* d, float* sum, int64_t rows,
                                  int64_t n) {
  for (int64_t row = 0; row < rows; ++row) {
    T* to = d + row * n;
    backward_elements<Form>(g + row * n, x + row * n, to, n);
    each_lanes(n, [&](int64_t i, auto count) PERIGEE_LAMBDA {
      const Floats added = load_lanes(to + i, count, 0);
      store_lanes(sum + i, load_lanes(sum + i, count, 0) + added, count);
    });
  }
}

// A result may share memory with an operand.
#define PERIGEE_GELU(T)                                                                        \
  PERIGEE_SIMD void forward(const T* x, T* y, int64_t n, bool exact) {                         \
    exact ? forward_elements<Exact>(x, y, n) : forward_elements<Approximate>(x, y, n);         \
  }                                                                                            \
  PERIGEE_SIMD void backward(const T* g, const T* x, T* d, int64_t n, bool exact) {            \
    exact ? backward_elements<Exact>(g, x, d, n) : backward_elements<Approximate>(g, x, d, n); \
  }                                                                                            \
  PERIGEE_SIMD void backward_sum(const T* g, const T* x, T* d, float* sum, int64_t rows,       \
                                 int64_t n, bool exact) {                                      \
    exact ? backward_rows<Exact>(g, x, d, sum, rows, n)                                        \
          : backward_rows<Approximate>(g, x, d, sum, rows, n);                                 \
  }
PERIGEE_GELU(float)
PERIGEE_GELU(c10::BFloat16)
#undef PERIGEE_GELU

}  // namespace

Kernel gelu(const Arguments& a) {
  if (!has_lanes(a)) return {};
  return [self = a.operand("self"), exact = a.text("approximate", "none") == "none",
          library = dispatcher_kernel(a.op())](std::span<const Tensor> in, std::span<Tensor> out,
                                               const Draw& draw) {
    const auto& x = in[self];
    if (!x.is_contiguous()) return library(in, out, draw);
    out[0] = at::empty(x.sizes(), x.options());
    dispatch_lanes(x.scalar_type(), [&]<class T>() {
      const T* from = x.const_data_ptr<T>();
      T* to = out[0].mutable_data_ptr<T>();
      at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
        forward(from + begin, to + begin, end - begin, exact);
      });
    });
  };
}

Kernel gelu_backward(const Arguments& a) {
  if (!has_lanes(a)) return {};
  return [grad = a.operand("grad_output"), self = a.operand("self"),
          exact = a.text("approximate", "none") == "none", library = dispatcher_kernel(a.op())](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw& draw) {
    const auto& g = in[grad];
    const auto& x = in[self];
    if (!x.is_contiguous() || !g.is_contiguous() || g.sizes() != x.sizes() ||
        g.scalar_type() != x.scalar_type()) {
      return library(in, out, draw);
    }
    out[0] = at::empty(x.sizes(), x.options());
    dispatch_lanes(x.scalar_type(), [&]<class T>() {
      const T *upstream = g.const_data_ptr<T>(), *from = x.const_data_ptr<T>();
      T* to = out[0].mutable_data_ptr<T>();
      at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
        backward(upstream + begin, from + begin, to + begin, end - begin, exact);
      });
    });
  };
}

Kernel gelu_backward_sum(const Arguments& a) {
  return [grad = a.operand("grad_output"), self = a.operand("self"),
          exact = a.text("approximate", "none") == "none", math = reference_op(a.op())](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw& draw) {
    const auto type = in[self].scalar_type();
    if (type != at::kFloat && type != at::kBFloat16) return math(in, out, draw);
    const auto x = in[self].contiguous(), g = in[grad].to(type).contiguous();
    const int64_t n = x.size(-1), rows = n ? x.numel() / n : 0;
    out[0] = at::empty(x.sizes(), x.options());
    // Each thread sums its rows; the partial sums are added in a fixed order.
    const int64_t parts = std::clamp<int64_t>(rows, 1, at::get_num_threads());
    const auto partials = at::zeros({parts, n}, x.options().dtype(at::kFloat));
    dispatch_lanes(type, [&]<class T>() {
      const T *upstream = g.const_data_ptr<T>(), *from = x.const_data_ptr<T>();
      T* to = out[0].mutable_data_ptr<T>();
      float* sums = partials.mutable_data_ptr<float>();
      at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
        for (int64_t p = first; p < last; ++p) {
          const int64_t begin = rows * p / parts, end = rows * (p + 1) / parts;
          backward_sum(upstream + begin * n, from + begin * n, to + begin * n, sums + p * n,
                       end - begin, n, exact);
        }
      });
    });
    if (out.size() > 1) {
      out[1] = (parts == 1 ? partials[0] : partials.sum(0)).to(type);
    }
  };
}

}  // namespace perigee::exec::kernels
