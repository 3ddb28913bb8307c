// The elementwise optimizers (optim/all.h) over flat buckets: one pass over contiguous tensors.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>

#include "base/fail.h"
#include "exec/kernels/element.h"
#include "exec/kernels/kernels.h"
#include "exec/ops/optimizer_arguments.h"
#include "optim/elementwise.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;
using namespace optim;

// Stores a new value, rounded to nearest or stochastically: up where the noise in [0, 1) is below
// the truncated fraction.
template <class T>
PERIGEE_INLINE void store_rounded(T* p, int64_t i, Wide<T> v, const float*) {
  store(p, i, v);
}
PERIGEE_INLINE void store_rounded(c10::BFloat16* p, int64_t i, float v, const float* noise) {
  if (!noise) return store(p, i, v);
  const auto bits = __builtin_bit_cast(uint32_t, v);
  // A carry must not reach the exponent of an infinity or a NaN.
  const uint32_t add = (bits & 0x7F800000) == 0x7F800000
                           ? 0
                           : 0xFFFF - static_cast<uint32_t>(noise[i] * 65536.0f);
  p[i].x = static_cast<uint16_t>((bits + add) >> 16);
}

// Parameters T, states S, gradients G.
template <class O, unsigned kHeld, class T, class S, class G>
PERIGEE_INLINE void update_elements(T* __restrict p, S* __restrict s0, S* __restrict s1,
                                    S* __restrict s2, const G* __restrict g,
                                    const float* __restrict noise, int64_t n,
                                    const typename O::template Constants<Wide<T>> c) {
  using W = Wide<T>;
  const auto fetch = [&](int64_t i) PERIGEE_LAMBDA {
    fetch_ahead<1024>(p, i);
    fetch_ahead<1024>(g, i);
    if constexpr (kHeld & 1) fetch_ahead<1024>(s0, i);
    if constexpr (kHeld & 2) fetch_ahead<1024>(s1, i);
    if constexpr (kHeld & 4) fetch_ahead<1024>(s2, i);
  };
  each_in_pieces(n, fetch, [&](int64_t i) PERIGEE_LAMBDA {
    W state[3];
    if constexpr (kHeld & 1) state[0] = load(s0, i);
    if constexpr (kHeld & 2) state[1] = load(s1, i);
    if constexpr (kHeld & 4) state[2] = load(s2, i);
    const W weight = O::template update<kHeld, W>(load(p, i), load(g, i), state, c);
    if constexpr (kHeld & 1) store(s0, i, state[0]);
    if constexpr (kHeld & 2) store(s1, i, state[1]);
    if constexpr (kHeld & 4) store(s2, i, state[2]);
    store_rounded(p, i, weight, noise);
  });
}

constexpr size_t kMostStates = 3;

// A range of a bucket. States that do not exist are nullptr.
template <class T, class S, class G>
struct Elements {
  T* parameter;
  std::array<S*, kMostStates> states;
  const G* gradient;
  const float* noise;
  int64_t count;
};

// Compiling a loop for several instruction sets requires a function that is no template: one for
// each optimizer and set of types.
#define PERIGEE_UPDATE(O, T, S, G)                                                           \
  PERIGEE_SIMD void run(const O*, const Elements<T, S, G>& e, unsigned held,                 \
                        const O::Constants<Wide<T>>& c) {                                    \
    with_states<O>(held, [&]<unsigned kHeld>() PERIGEE_LAMBDA {                              \
      update_elements<O, kHeld, T, S, G>(e.parameter, e.states[0], e.states[1], e.states[2], \
                                         e.gradient, e.noise, e.count, c);                   \
    });                                                                                      \
  }
#define PERIGEE_UPDATES(O)                                       \
  static_assert(kStateCount<O> <= kMostStates);                  \
  PERIGEE_UPDATE(O, float, float, float)                         \
  PERIGEE_UPDATE(O, double, double, double)                      \
  PERIGEE_UPDATE(O, c10::BFloat16, c10::BFloat16, c10::BFloat16) \
  PERIGEE_UPDATE(O, float, float, c10::BFloat16)                 \
  PERIGEE_UPDATE(O, float, float, c10::Half)                     \
  PERIGEE_UPDATE(O, c10::BFloat16, float, c10::BFloat16)         \
  PERIGEE_UPDATE(O, c10::BFloat16, float, float)
PERIGEE_ELEMENTWISE_OPTIMIZERS(PERIGEE_UPDATES)
#undef PERIGEE_UPDATES
#undef PERIGEE_UPDATE

// Copies weights to their low values while they are in the first-level cache.
#define PERIGEE_COPY_LOW(T)                                         \
  PERIGEE_SIMD void copy_low(const float* from, T* to, int64_t n) { \
    for (int64_t i = 0; i < n; ++i) store(to, i, load(from, i));    \
  }
PERIGEE_COPY_LOW(c10::BFloat16)
PERIGEE_COPY_LOW(c10::Half)
#undef PERIGEE_COPY_LOW

constexpr int64_t kCached = 1024;  // elements of weights, gradient and states in that cache

double scalar(std::span<const Tensor> in, int position, double otherwise) {
  return position < 0 ? otherwise : *in[position].const_data_ptr<double>();
}

constexpr int64_t kGrain = 32768;

// Calls f<T, S, G>(begin, end) over all elements, in the operands' types.
template <class F>
void each_range(const OptimizerArguments& a, std::span<const Tensor> in, F f) {
  const auto [p, s, g] = a.types(in);
  const auto types = [&]<class T, class S, class G>(T*, S*, G*) {
    at::parallel_for(0, in[a.self].numel(), kGrain, [&](int64_t begin, int64_t end) {
      f.template operator()<T, S, G>(begin, end);
    });
    return true;
  };
  const auto is = [&, p = p, s = s, g = g](at::ScalarType a, at::ScalarType b, at::ScalarType c) {
    return p == a && s == b && g == c;
  };
  using enum at::ScalarType;
  float* full = nullptr;
  double* wide = nullptr;
  c10::BFloat16* low = nullptr;
  c10::Half* half = nullptr;
  const bool known = is(Float, Float, Float)            ? types(full, full, full)
                     : is(Double, Double, Double)       ? types(wide, wide, wide)
                     : is(BFloat16, BFloat16, BFloat16) ? types(low, low, low)
                     : is(Float, Float, BFloat16)       ? types(full, full, low)
                     : is(Float, Float, Half)           ? types(full, full, half)
                     : is(BFloat16, Float, BFloat16)    ? types(low, full, low)
                     : is(BFloat16, Float, Float)       ? types(low, full, full)
                                                        : false;
  if (!known) a.refuse(in);
}

template <class T>
T* data(std::span<const Tensor> in, int position, int64_t begin) {
  return position < 0 ? nullptr : in[position].mutable_data_ptr<T>() + begin;
}

void copy_low(const Tensor& weights, const Tensor& low, int64_t begin, int64_t count) {
  const auto* from = weights.const_data_ptr<float>() + begin;
  if (low.scalar_type() == at::kHalf) {
    copy_low(from, low.mutable_data_ptr<c10::Half>() + begin, count);
  } else {
    copy_low(from, low.mutable_data_ptr<c10::BFloat16>() + begin, count);
  }
}

template <class O>
Kernel kernel_of(const Arguments& arguments) {
  return [a = OptimizerArguments::of<O>(arguments), numbers = numbers_of<O>(arguments)](
             std::span<const Tensor> in, std::span<Tensor>, const Draw&) {
    const StepNumbers now = {.lr = scalar(in, a.lr, 0),
                             .step = scalar(in, a.step, 1),
                             .scale = scalar(in, a.scale, 1),
                             .weight_decay = a.weight_decay.of(in)};
    if (a.guarded && now.scale != now.scale) return;
    const auto update = [&]<class T, class S, class G>(int64_t begin, int64_t end) {
      Elements<T, S, G> elements = {.parameter = data<T>(in, a.self, begin),
                                    .states = {},
                                    .gradient = data<G>(in, a.gradient, begin),
                                    .noise = data<float>(in, a.noise, begin),
                                    .count = end - begin};
      for (size_t k = 0; k < a.states.size(); ++k) {
        elements.states[k] = data<S>(in, a.states[k], begin);
      }
      run(static_cast<const O*>(nullptr), elements, a.held(),
          O::template constants<Wide<T>>(numbers, now));
    };
    each_range(a, in, [&]<class T, class S, class G>(int64_t begin, int64_t end) {
      if (a.low < 0) return update.template operator()<T, S, G>(begin, end);
      for (; begin < end; begin += kCached) {
        const int64_t count = std::min(kCached, end - begin);
        update.template operator()<T, S, G>(begin, begin + count);
        copy_low(in[a.self], in[a.low], begin, count);
      }
    });
  };
}

}  // namespace

Kernel optimizer(const Arguments& arguments) {
#define PERIGEE_KERNEL(O) \
  if (is_step_of<O>(arguments)) return kernel_of<O>(arguments);
  PERIGEE_ELEMENTWISE_OPTIMIZERS(PERIGEE_KERNEL)
#undef PERIGEE_KERNEL
  return nullptr;
}

}  // namespace perigee::exec::kernels
