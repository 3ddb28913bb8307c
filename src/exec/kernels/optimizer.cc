#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "exec/kernels/element.h"
#include "exec/kernels/kernels.h"
#include "exec/optimizer_step.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

template <class T>
PERIGEE_INLINE void adam_elements(T* __restrict p, T* __restrict m, T* __restrict v,
                                  const T* __restrict g, int64_t n, const AdamStep<Wide<T>> s) {
  using W = Wide<T>;
  for (int64_t i = 0; i < n; ++i) {
    const W old = load(p, i);
    const W grad = load(g, i) * s.scale + s.decay * old;
    const W m_new = load(m, i) + (grad - load(m, i)) * s.one_minus_beta1;
    const W v_new = load(v, i) * s.beta2 + grad * grad * s.one_minus_beta2;
    store(m, i, m_new);
    store(v, i, v_new);
    store(p, i, old * s.shrink - s.step_size * m_new / (root(v_new) / s.root2 + s.eps));
  }
}

// Without momentum m is nullptr.
template <class T>
PERIGEE_INLINE void sgd_elements(T* __restrict p, T* __restrict m, const T* __restrict g, int64_t n,
                                 const SgdStep<Wide<T>> s) {
  using W = Wide<T>;
  if (!m) {
    for (int64_t i = 0; i < n; ++i) {
      const W grad = load(g, i) * s.scale + s.decay * load(p, i);
      store(p, i, load(p, i) - s.lr * grad);
    }
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const W grad = load(g, i) * s.scale + s.decay * load(p, i);
    const W sum = s.first ? grad : s.momentum * load(m, i) + s.one_minus_dampening * grad;
    store(m, i, sum);
    store(p, i, load(p, i) - s.lr * (s.nesterov ? grad + s.momentum * sum : sum));
  }
}

#define PERIGEE_OPTIMIZER(T)                                                                \
  PERIGEE_SIMD void run_adam(T* p, T* m, T* v, const T* g, int64_t n,                       \
                             const AdamStep<Wide<T>>& s) {                                  \
    adam_elements<T>(p, m, v, g, n, s);                                                     \
  }                                                                                         \
  PERIGEE_SIMD void run_sgd(T* p, T* m, const T* g, int64_t n, const SgdStep<Wide<T>>& s) { \
    sgd_elements<T>(p, m, g, n, s);                                                         \
  }
PERIGEE_OPTIMIZER(float)
PERIGEE_OPTIMIZER(double)
PERIGEE_OPTIMIZER(c10::BFloat16)
#undef PERIGEE_OPTIMIZER

double scalar(std::span<const Tensor> in, int position, double otherwise) {
  return position < 0 ? otherwise : *in[position].const_data_ptr<double>();
}

void check(const std::string& op, const Tensor& self, const Tensor& other) {
  if (!self.is_contiguous() || !other.is_contiguous() ||
      self.scalar_type() != other.scalar_type() || self.numel() != other.numel()) {
    fail("exec", "{} needs contiguous tensors of one type and size, but got {} of {} and {} of {}",
         op, self.numel(), c10::toString(self.scalar_type()), other.numel(),
         c10::toString(other.scalar_type()));
  }
}

void each_element(const std::string& op, const Tensor& self, auto f) {
  if (!dispatch_element(self.scalar_type(), f)) {
    fail("exec", "{} needs float32, float64 or bfloat16 parameters, but got {}", op,
         c10::toString(self.scalar_type()));
  }
}

constexpr int64_t kGrain = 32768;

Kernel make_adam(const Arguments& a, bool decoupled) {
  const AdamNumbers numbers = {.beta1 = a.number("beta1", 0.9),
                               .beta2 = a.number("beta2", 0.999),
                               .eps = a.number("eps", 1e-8),
                               .weight_decay = a.number("weight_decay", 0.0),
                               .decoupled = decoupled};
  return [name = a.name(), self = a.operand("self"), first = a.operand("exp_avg"),
          second = a.operand("exp_avg_sq"), gradient = a.operand("gradient"), lr = a.operand("lr"),
          step = a.operand("step"), scale = a.optional_operand("scale"),
          numbers](std::span<const Tensor> in, std::span<Tensor>, const Draw&) {
    for (int other : {first, second, gradient}) check(name, in[self], in[other]);
    const StepNumbers now = {scalar(in, lr, 0), scalar(in, step, 1), scalar(in, scale, 1)};
    each_element(name, in[self], [&]<class T>() {
      const auto s = adam_step<Wide<T>>(numbers, now);
      T* p = in[self].mutable_data_ptr<T>();
      T* m = in[first].mutable_data_ptr<T>();
      T* v = in[second].mutable_data_ptr<T>();
      const T* g = in[gradient].const_data_ptr<T>();
      at::parallel_for(0, in[self].numel(), kGrain, [&](int64_t begin, int64_t end) {
        run_adam(p + begin, m + begin, v + begin, g + begin, end - begin, s);
      });
    });
  };
}

}  // namespace

Kernel adamw(const Arguments& a) { return make_adam(a, true); }
Kernel adam(const Arguments& a) { return make_adam(a, false); }

Kernel sgd(const Arguments& a) {
  const SgdNumbers numbers = {.momentum = a.number("momentum", 0.0),
                              .dampening = a.number("dampening", 0.0),
                              .weight_decay = a.number("weight_decay", 0.0),
                              .nesterov = a.flag("nesterov", false)};
  return [name = a.name(), self = a.operand("self"), buffer = a.optional_operand("momentum_buffer"),
          gradient = a.operand("gradient"), lr = a.operand("lr"), step = a.operand("step"),
          scale = a.optional_operand("scale"),
          numbers](std::span<const Tensor> in, std::span<Tensor>, const Draw&) {
    check(name, in[self], in[gradient]);
    if (buffer >= 0) check(name, in[self], in[buffer]);
    const StepNumbers now = {scalar(in, lr, 0), scalar(in, step, 1), scalar(in, scale, 1)};
    each_element(name, in[self], [&]<class T>() {
      const auto s = sgd_step<Wide<T>>(numbers, now);
      T* p = in[self].mutable_data_ptr<T>();
      T* m = buffer >= 0 ? in[buffer].mutable_data_ptr<T>() : nullptr;
      const T* g = in[gradient].const_data_ptr<T>();
      at::parallel_for(0, in[self].numel(), kGrain, [&](int64_t begin, int64_t end) {
        run_sgd(p + begin, m ? m + begin : nullptr, g + begin, end - begin, s);
      });
    });
  };
}

}  // namespace perigee::exec::kernels
