#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <limits>

#include "base/fail.h"
#include "exec/kernels/element.h"
#include "exec/kernels/kernels.h"
#include "exec/kernels/lanes.h"
#include "exec/reference/ops.h"
#include "exec/tensor.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

// log(sum(exp(x))) of n elements.
template <class T>
PERIGEE_INLINE float log_sum_exp(const T* x, int64_t n) {
  const float lowest = -std::numeric_limits<float>::infinity();
  Floats top = splat(lowest);
  each_lanes(n, [&](int64_t i, auto count) PERIGEE_LAMBDA {
    const Floats v = load_lanes(x + i, count, lowest);
    top = v > top ? v : top;
  });
  float most = lowest;
  for (int l = 0; l < kLanes; ++l) most = top[l] > most ? top[l] : most;
  if (most == lowest) most = 0;  // all -inf: the sum is 0
  Floats sum = splat(0);
  each_lanes(n, [&](int64_t i, auto count) PERIGEE_LAMBDA {
    sum += exp_negative(load_lanes(x + i, count, lowest) - most);
  });
  float total = 0;
  for (int l = 0; l < kLanes; ++l) total += sum[l];
  return most + __builtin_logf(total);
}
PERIGEE_INLINE double log_sum_exp(const double* x, int64_t n) {
  double most = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < n; ++i) most = x[i] > most ? x[i] : most;
  if (most == -std::numeric_limits<double>::infinity()) most = 0;
  double total = 0;
  for (int64_t i = 0; i < n; ++i) total += __builtin_exp(x[i] - most);
  return most + __builtin_log(total);
}

// d[k] = a exp(x[k] - lse) - c w[k]; d may be x.
template <class T>
PERIGEE_INLINE void gradient_row(const T* x, T* d, const T* weight, int64_t n, float lse, float a,
                                 float c) {
  each_lanes(n, [&](int64_t i, auto count) PERIGEE_LAMBDA {
    Floats v = exp_negative(load_lanes(x + i, count, 0) - lse) * a;
    if (c != 0) v -= weight ? load_lanes(weight + i, count, 0) * c : splat(c);
    store_lanes(d + i, v, count);
  });
}
PERIGEE_INLINE void gradient_row(const double* x, double* d, const double* weight, int64_t n,
                                 double lse, double a, double c) {
  for (int64_t i = 0; i < n; ++i)
    d[i] = a * __builtin_exp(x[i] - lse) - c * (weight ? weight[i] : 1.0);
}

template <class T>
PERIGEE_INLINE Wide<T> weighted_sum(const T* x, const T* weight, int64_t n) {
  using W = Wide<T>;
  if (!weight) return lane_sum<W>(n, [&](int64_t k) PERIGEE_LAMBDA { return load(x, k); });
  return lane_sum<W>(n, [&](int64_t k) PERIGEE_LAMBDA { return load(x, k) * load(weight, k); });
}

#define PERIGEE_CROSS_ENTROPY(T)                                                            \
  PERIGEE_SIMD Wide<T> row_lse(const T* x, int64_t n) { return log_sum_exp(x, n); }         \
  PERIGEE_SIMD void row_gradient(const T* x, T* d, const T* weight, int64_t n, Wide<T> lse, \
                                 Wide<T> a, Wide<T> c) {                                    \
    gradient_row(x, d, weight, n, lse, a, c);                                               \
  }                                                                                         \
  PERIGEE_SIMD Wide<T> row_sum(const T* x, const T* weight, int64_t n) {                    \
    return weighted_sum<T>(x, weight, n);                                                   \
  }
PERIGEE_CROSS_ENTROPY(float)
PERIGEE_CROSS_ENTROPY(double)
PERIGEE_CROSS_ENTROPY(c10::BFloat16)
#undef PERIGEE_CROSS_ENTROPY

// Arguments and checks of the forward and backward ops.
struct Loss {
  int logits, target, weight;
  int64_t ignore_index;
  double smoothing;

  explicit Loss(const Arguments& a)
      : logits(a.operand("logits")),
        target(a.operand("target")),
        weight(a.optional_operand("weight")),
        ignore_index(a.integer("ignore_index", -100)),
        smoothing(a.number("label_smoothing", 0.0)) {}

  Tensor weights(std::span<const Tensor> in) const {
    return weight < 0 ? Tensor() : in[weight].to(in[logits].scalar_type()).contiguous();
  }

  void check(int64_t label, int64_t classes) const {
    if (label < 0 || label >= classes) {
      fail_run("exec", "labels must be ignore_index {} or lie in [0, {}), but got {}", ignore_index,
               classes, label);
    }
  }
};

template <class T>
const T* data_or_null(const Tensor& t) {
  return t.defined() ? t.const_data_ptr<T>() : nullptr;
}

// Returns the fewest rows per thread.
int64_t grain(int64_t classes) { return 1 + 32768 / std::max<int64_t>(classes, 1); }

}  // namespace

Kernel cross_entropy(const Arguments& a) {
  const auto type = a.wanted(0) ? std::optional(scalar_type(a.type(0).dtype)) : std::nullopt;
  return [loss = Loss(a), losses_type = type, math = reference_op(a.op())](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw& draw) {
    if (!has_element(in[loss.logits].scalar_type())) return math(in, out, draw);
    const auto x = in[loss.logits].contiguous();
    const auto labels = in[loss.target].to(at::kLong).contiguous();
    const auto weights = loss.weights(in);
    const int64_t rows = x.size(0), n = x.size(1);
    const auto type = losses_type.value_or(x.scalar_type());
    out[0] = at::empty({rows}, x.options().dtype(type));
    auto lse = at::empty(
        {rows}, x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
    const auto* label = labels.const_data_ptr<int64_t>();
    dispatch_element(x.scalar_type(), [&]<class T>() {
      using W = Wide<T>;
      const T* w = data_or_null<T>(weights);
      auto* lse_data = lse.mutable_data_ptr<W>();
      const double class_weights = w ? row_sum(w, nullptr, n) : static_cast<double>(n);
      dispatch_element(type, [&]<class L>() {
        L* losses = out[0].mutable_data_ptr<L>();
        at::parallel_for(0, rows, grain(n), [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const T* row = x.const_data_ptr<T>() + i * n;
            lse_data[i] = row_lse(row, n);
            if (label[i] == loss.ignore_index) {
              store(losses, i, Wide<L>(0));
              continue;
            }
            loss.check(label[i], n);
            const double l = lse_data[i];
            double value = (w ? load(w, label[i]) : W(1)) * (l - load(row, label[i]));
            if (loss.smoothing > 0) {
              const double smooth = class_weights * l - row_sum(row, w, n);
              value = (1 - loss.smoothing) * value +
                      loss.smoothing / static_cast<double>(n) * smooth;
            }
            store(losses, i, static_cast<Wide<L>>(value));
          }
        });
      });
    });
    if (out.size() > 1) out[1] = std::move(lse);
  };
}

Kernel cross_entropy_backward(const Arguments& a) {
  return [loss = Loss(a), grad = a.operand("grad"), saved = a.operand("logsumexp"),
          math = reference_op(a.op())](std::span<const Tensor> in, std::span<Tensor> out,
                                       const Draw& draw) {
    if (!has_element(in[loss.logits].scalar_type())) return math(in, out, draw);
    const auto x = in[loss.logits].contiguous();
    const auto labels = in[loss.target].to(at::kLong).contiguous();
    const auto weights = loss.weights(in);
    const auto wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const auto g = in[grad].to(wide).contiguous();
    const auto lse = in[saved].to(wide).contiguous();
    const int64_t rows = x.size(0), n = x.size(1);
    out[0] = at::empty(x.sizes(), x.options());
    const auto* label = labels.const_data_ptr<int64_t>();
    dispatch_element(x.scalar_type(), [&]<class T>() {
      using W = Wide<T>;
      const T* w = data_or_null<T>(weights);
      const T* from = x.const_data_ptr<T>();
      T* to = out[0].mutable_data_ptr<T>();
      const W* upstream = g.const_data_ptr<W>();
      const W* l = lse.const_data_ptr<W>();
      const W smooth = static_cast<W>(loss.smoothing / static_cast<double>(n));
      const W class_weights = w ? row_sum(w, nullptr, n) : static_cast<W>(n);
      at::parallel_for(0, rows, grain(n), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          T* row = to + i * n;
          if (label[i] == loss.ignore_index) {
            for (int64_t k = 0; k < n; ++k) store(row, k, W(0));
            continue;
          }
          loss.check(label[i], n);
          const W picked = static_cast<W>(1 - loss.smoothing) * (w ? load(w, label[i]) : W(1));
          const W softmax = upstream[i] * (picked + smooth * class_weights);
          // Read before the row is written, which may be the memory of the logits.
          const W at_label = softmax * std::exp(load(from + i * n, label[i]) - l[i]) -
                             upstream[i] * (picked + smooth * (w ? load(w, label[i]) : W(1)));
          row_gradient(from + i * n, row, w, n, l[i], softmax, upstream[i] * smooth);
          store(row, label[i], at_label);
        }
      });
    });
  };
}

}  // namespace perigee::exec::kernels
