#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "exec/kernels/element.h"
#include "exec/kernels/kernels.h"
#include "exec/optimizer_step.h"
#include "exec/step_number.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

// A new value, rounded to nearest or, with noise in [0, 1), up where that is below the part that is
// cut off.
template <class T>
PERIGEE_INLINE void keep(T* p, int64_t i, Wide<T> v, const float*) {
  store(p, i, v);
}
PERIGEE_INLINE void keep(c10::BFloat16* p, int64_t i, float v, const float* noise) {
  if (!noise) return store(p, i, v);
  const auto bits = __builtin_bit_cast(uint32_t, v);
  // The exponent of what is infinite or no number must not carry.
  const uint32_t add =
      (bits & 0x7F800000) == 0x7F800000 ? 0 : 0xFFFF - static_cast<uint32_t>(noise[i] * 65536.0f);
  p[i].x = static_cast<uint16_t>((bits + add) >> 16);
}

// Parameters T, states S, gradients G.
template <class T, class S, class G>
PERIGEE_INLINE void adam_elements(T* __restrict p, S* __restrict m, S* __restrict v,
                                  const G* __restrict g, const float* __restrict noise, int64_t n,
                                  const AdamStep<Wide<T>> s) {
  using W = Wide<T>;
  for (int64_t i = 0; i < n; ++i) {
    const W old = load(p, i);
    const W grad = load(g, i) * s.scale + s.decay * old;
    const W m_new = load(m, i) + (grad - load(m, i)) * s.one_minus_beta1;
    const W v_new = load(v, i) * s.beta2 + grad * grad * s.one_minus_beta2;
    store(m, i, m_new);
    store(v, i, v_new);
    keep(p, i, old * s.shrink - s.step_size * m_new / (root(v_new) / s.root2 + s.eps), noise);
  }
}

template <class T, class S, class G>
PERIGEE_INLINE void lion_elements(T* __restrict p, S* __restrict m, const G* __restrict g,
                                  const float* __restrict noise, int64_t n,
                                  const LionStep<Wide<T>> s) {
  using W = Wide<T>;
  for (int64_t i = 0; i < n; ++i) {
    const W grad = load(g, i) * s.scale;
    const W average = load(m, i);
    const W step = average + (grad - average) * s.one_minus_beta1;
    store(m, i, average + (grad - average) * s.one_minus_beta2);
    const W sign = step > 0 ? W(1) : step < 0 ? W(-1) : step;  // NaN stays
    keep(p, i, load(p, i) * s.shrink - s.lr * sign, noise);
  }
}

// Without momentum m is nullptr.
template <class T, class S, class G>
PERIGEE_INLINE void sgd_elements(T* __restrict p, S* __restrict m, const G* __restrict g,
                                 const float* __restrict noise, int64_t n,
                                 const SgdStep<Wide<T>> s) {
  using W = Wide<T>;
  if (!m) {
    for (int64_t i = 0; i < n; ++i) {
      const W grad = load(g, i) * s.scale + s.decay * load(p, i);
      keep(p, i, load(p, i) - s.lr * grad, noise);
    }
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const W grad = load(g, i) * s.scale + s.decay * load(p, i);
    const W sum = s.first ? grad : s.momentum * load(m, i) + s.one_minus_dampening * grad;
    store(m, i, sum);
    keep(p, i, load(p, i) - s.lr * (s.nesterov ? grad + s.momentum * sum : sum), noise);
  }
}

#define PERIGEE_OPTIMIZER(T, S, G)                                                        \
  PERIGEE_SIMD void run_adam(T* p, S* m, S* v, const G* g, const float* noise, int64_t n, \
                             const AdamStep<Wide<T>>& s) {                                \
    adam_elements<T, S, G>(p, m, v, g, noise, n, s);                                      \
  }                                                                                       \
  PERIGEE_SIMD void run_lion(T* p, S* m, const G* g, const float* noise, int64_t n,       \
                             const LionStep<Wide<T>>& s) {                                \
    lion_elements<T, S, G>(p, m, g, noise, n, s);                                         \
  }                                                                                       \
  PERIGEE_SIMD void run_sgd(T* p, S* m, const G* g, const float* noise, int64_t n,        \
                            const SgdStep<Wide<T>>& s) {                                  \
    sgd_elements<T, S, G>(p, m, g, noise, n, s);                                          \
  }
PERIGEE_OPTIMIZER(float, float, float)
PERIGEE_OPTIMIZER(double, double, double)
PERIGEE_OPTIMIZER(c10::BFloat16, c10::BFloat16, c10::BFloat16)
PERIGEE_OPTIMIZER(float, float, c10::BFloat16)
PERIGEE_OPTIMIZER(float, float, c10::Half)
PERIGEE_OPTIMIZER(c10::BFloat16, float, c10::BFloat16)
PERIGEE_OPTIMIZER(c10::BFloat16, float, float)
#undef PERIGEE_OPTIMIZER

double scalar(std::span<const Tensor> in, int position, double otherwise) {
  return position < 0 ? otherwise : *in[position].const_data_ptr<double>();
}

constexpr int64_t kGrain = 32768;

// The operands that all optimizers have, and what a guarded step does to them.
struct Common {
  explicit Common(const Arguments& a)
      : name(a.name()),
        self(a.operand("self")),
        gradient(a.operand("gradient")),
        lr(a.operand("lr")),
        step(a.operand("step")),
        scale(a.optional_operand("scale")),
        noise(a.optional_operand("noise")),
        weight_decay(a, "weight_decay"),
        guarded(a.flag("guarded", false)) {}

  StepNumbers now(std::span<const Tensor> in) const {
    return {scalar(in, lr, 0), scalar(in, step, 1), scalar(in, scale, 1), weight_decay.of(in)};
  }
  bool skips(const StepNumbers& now) const { return guarded && now.scale != now.scale; }

  // Calls f<T, S, G>(begin, end) over all elements.
  void run(std::span<const Tensor> in, std::initializer_list<int> states, auto f) const {
    const auto& p = in[self];
    auto s = noise < 0 ? p.scalar_type() : at::kFloat;
    for (const int state : states) {
      if (state >= 0) s = in[state].scalar_type();
    }
    const auto same = [&](int other, at::ScalarType type) {
      return other < 0 || (in[other].is_contiguous() && in[other].numel() == p.numel() &&
                           in[other].scalar_type() == type);
    };
    const auto g = in[gradient].scalar_type();
    bool fits = p.is_contiguous() && same(gradient, g) && same(noise, at::kFloat);
    for (const int state : states) fits = fits && same(state, s);
    const auto types = [&]<class T, class S, class G>(T*, S*, G*) {
      at::parallel_for(0, p.numel(), kGrain, [&](int64_t begin, int64_t end) {
        f.template operator()<T, S, G>(begin, end);
      });
    };
    const auto is = [&](at::ScalarType a, at::ScalarType b, at::ScalarType c) {
      return fits && p.scalar_type() == a && s == b && g == c;
    };
    using enum at::ScalarType;
    float* full = nullptr;
    double* wide = nullptr;
    c10::BFloat16* low = nullptr;
    c10::Half* half = nullptr;
    if (is(Float, Float, Float)) return types(full, full, full);
    if (is(Double, Double, Double)) return types(wide, wide, wide);
    if (is(BFloat16, BFloat16, BFloat16)) return types(low, low, low);
    if (is(Float, Float, BFloat16)) return types(full, full, low);
    if (is(Float, Float, Half)) return types(full, full, half);
    if (is(BFloat16, Float, BFloat16)) return types(low, full, low);
    if (is(BFloat16, Float, Float)) return types(low, full, full);
    fail("exec",
         "{} needs contiguous tensors of one size, all float32, float64 or bfloat16 or as "
         "graph/ops.h says, but got {} parameters of {}, states of {}, {} gradients of {}",
         name, p.numel(), c10::toString(p.scalar_type()), c10::toString(s), in[gradient].numel(),
         c10::toString(g));
  }

  std::string name;
  int self, gradient, lr, step, scale, noise;
  StepNumber weight_decay;
  bool guarded;
};

template <class T>
T* data(std::span<const Tensor> in, int position, int64_t begin) {
  return position < 0 ? nullptr : in[position].mutable_data_ptr<T>() + begin;
}

Kernel make_adam(const Arguments& a, bool decoupled) {
  const AdamNumbers numbers = {.beta1 = a.number("beta1", 0.9),
                               .beta2 = a.number("beta2", 0.999),
                               .eps = a.number("eps", 1e-8),
                               .decoupled = decoupled};
  return [c = Common(a), first = a.operand("exp_avg"), second = a.operand("exp_avg_sq"), numbers](
             std::span<const Tensor> in, std::span<Tensor>, const Draw&) {
    const auto now = c.now(in);
    if (c.skips(now)) return;
    c.run(in, {first, second}, [&]<class T, class S, class G>(int64_t begin, int64_t end) {
      run_adam(data<T>(in, c.self, begin), data<S>(in, first, begin), data<S>(in, second, begin),
               data<G>(in, c.gradient, begin), data<float>(in, c.noise, begin), end - begin,
               adam_step<Wide<T>>(numbers, now));
    });
  };
}

}  // namespace

Kernel adamw(const Arguments& a) { return make_adam(a, true); }
Kernel adam(const Arguments& a) { return make_adam(a, false); }

Kernel lion(const Arguments& a) {
  const LionNumbers numbers = {.beta1 = a.number("beta1", 0.9), .beta2 = a.number("beta2", 0.99)};
  return [c = Common(a), average = a.operand("exp_avg"), numbers](std::span<const Tensor> in,
                                                                  std::span<Tensor>, const Draw&) {
    const auto now = c.now(in);
    if (c.skips(now)) return;
    c.run(in, {average}, [&]<class T, class S, class G>(int64_t begin, int64_t end) {
      run_lion(data<T>(in, c.self, begin), data<S>(in, average, begin),
               data<G>(in, c.gradient, begin), data<float>(in, c.noise, begin), end - begin,
               lion_step<Wide<T>>(numbers, now));
    });
  };
}

Kernel sgd(const Arguments& a) {
  const SgdNumbers numbers = {.momentum = a.number("momentum", 0.0),
                              .dampening = a.number("dampening", 0.0),
                              .nesterov = a.flag("nesterov", false)};
  return [c = Common(a), buffer = a.optional_operand("momentum_buffer"), numbers](
             std::span<const Tensor> in, std::span<Tensor>, const Draw&) {
    const auto now = c.now(in);
    if (c.skips(now)) return;
    c.run(in, {buffer}, [&]<class T, class S, class G>(int64_t begin, int64_t end) {
      run_sgd(data<T>(in, c.self, begin), data<S>(in, buffer, begin),
              data<G>(in, c.gradient, begin), data<float>(in, c.noise, begin), end - begin,
              sgd_step<Wide<T>>(numbers, now));
    });
  };
}

}  // namespace perigee::exec::kernels
