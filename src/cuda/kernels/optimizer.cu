// The elementwise optimizers (optim/all.h) over flat buckets.
#include <cstring>
#include <type_traits>

#include "cuda/kernels/element.cuh"
#include "optim/elementwise.h"

namespace perigee::cuda {
namespace {

using namespace optim;

__device__ StepNumbers read(const StepScalars& scalars) {
  return {*scalars.lr, *scalars.step, scalars.scale ? *scalars.scale : 1,
          scalars.weight_decay ? *scalars.weight_decay : scalars.fixed_weight_decay};
}

// Stores a new value, rounded to nearest or stochastically: up where the noise in [0, 1) is below
// the truncated fraction.
template <class T>
__device__ void store_rounded(T* p, int64_t i, Wide<T> v, const float*) {
  store(p, i, v);
}
__device__ void store_rounded(__nv_bfloat16* p, int64_t i, float v, const float* noise) {
  if (!noise) return store(p, i, v);
  const unsigned bits = __float_as_uint(v);
  // A carry must not reach the exponent of an infinity or a NaN.
  const unsigned add = (bits & 0x7F800000) == 0x7F800000
                           ? 0
                           : 0xFFFF - static_cast<unsigned>(noise[i] * 65536.0f);
  p[i] = __ushort_as_bfloat16(static_cast<unsigned short>((bits + add) >> 16));
}

// Memory of new values in a low precision, or nullptr.
struct Low {
  void* at;
  bool half;  // float16, else bfloat16
};
template <class T>
__device__ void store_low(const Low& low, int64_t i, Wide<T> v) {
  if constexpr (std::is_same_v<T, float>) {
    if (!low.at) return;
    if (low.half) {
      store(static_cast<__half*>(low.at), i, v);
    } else {
      store(static_cast<__nv_bfloat16*>(low.at), i, v);
    }
  }
}

template <class S>
struct States {
  S* at[kMostOptimizerStates];
};

// Parameters T, states S, gradients G.
template <class O, unsigned kHeld, class T, class S, class G>
__global__ void update_elements(T* p, States<S> states, const G* g, const float* noise, Low low,
                                int64_t n, typename O::Numbers numbers, StepScalars scalars) {
  using W = Wide<T>;
  __shared__ typename O::template Constants<W> shared;
  if (threadIdx.x == 0) shared = O::template constants<W>(numbers, read(scalars));
  __syncthreads();
  const auto c = shared;
  if (scalars.guarded && c.scale != c.scale) return;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += stride) {
    W state[kMostOptimizerStates];
    for (int k = 0; k < kMostOptimizerStates; ++k) {
      if (kHeld >> k & 1) state[k] = load(states.at[k], i);
    }
    const W weight = O::template update<kHeld, W>(load(p, i), load(g, i), state, c);
    for (int k = 0; k < kMostOptimizerStates; ++k) {
      if (kHeld >> k & 1) store(states.at[k], i, state[k]);
    }
    store_rounded(p, i, weight, noise);
    store_low<T>(low, i, weight);
  }
}

// Calls f with null pointers to the types of parameters, states and gradients.
template <class F>
void dispatch_types(const OptimizerTypes& types, F f) {
  const auto is = [&](Element p, Element s, Element g) {
    return types.parameter == p && types.state == s && types.gradient == g;
  };
  const auto call = [&]<class T, class S, class G>(T* p, S* s, G* g) { f(p, s, g); };
  float* full = nullptr;
  __nv_bfloat16* low = nullptr;
  __half* half = nullptr;
  if (types.state == types.parameter && types.gradient == types.parameter) {
    return dispatch_floating(types.parameter, [&](auto* type) { call(type, type, type); });
  }
  if (is(Element::float32, Element::float32, Element::bfloat16)) return call(full, full, low);
  if (is(Element::float32, Element::float32, Element::float16)) return call(full, full, half);
  if (is(Element::bfloat16, Element::float32, Element::bfloat16)) return call(low, full, low);
  if (is(Element::bfloat16, Element::float32, Element::float32)) return call(low, full, full);
  throw std::invalid_argument("an optimizer needs the types that graph/ops.h lists");
}

template <class O, unsigned kHeld>
void step_held(const OptimizerTensors& t, const OptimizerTypes& types,
               const typename O::Numbers& numbers, const StepScalars& scalars,
               cudaStream_t stream) {
  dispatch_types(types, [&](auto* p, auto* s, auto* g) {
    using T = std::remove_pointer_t<decltype(p)>;
    using S = std::remove_pointer_t<decltype(s)>;
    using G = std::remove_pointer_t<decltype(g)>;
    States<S> states;
    for (int k = 0; k < kMostOptimizerStates; ++k) states.at[k] = static_cast<S*>(t.states[k]);
    launch(update_elements<O, kHeld, T, S, G>, blocks_for(t.elements, 4), kThreads, stream,
           static_cast<T*>(t.parameter), states, static_cast<const G*>(t.gradient), t.noise,
           Low{t.low, t.low_element == Element::float16}, t.elements, numbers, scalars);
  });
}

// Launches the kernel for the states that exist.
template <class O, unsigned kHeld = 0>
void launch_held(unsigned held, const OptimizerTensors& t, const OptimizerTypes& types,
                 const typename O::Numbers& numbers, const StepScalars& scalars,
                 cudaStream_t stream) {
  if constexpr (kHeld >> kStateCount<O>) {
    throw std::invalid_argument("an optimizer's states must be those that its attributes need");
  } else {
    if constexpr (is_state_set<O>(kHeld)) {
      if (held == kHeld) return step_held<O, kHeld>(t, types, numbers, scalars, stream);
    }
    launch_held<O, kHeld + 1>(held, t, types, numbers, scalars, stream);
  }
}

}  // namespace

#define PERIGEE_STEP(O)                                                                        \
  void step_bucket(const OptimizerTensors& t, const OptimizerTypes& types,                     \
                   const O::Numbers& numbers, const StepScalars& scalars, cudaStream_t stream, \
                   const O*) {                                                                 \
    static_assert(kStateCount<O> <= kMostOptimizerStates);                                     \
    if (t.elements > 0) launch_held<O>(t.held, t, types, numbers, scalars, stream);            \
  }
PERIGEE_ELEMENTWISE_OPTIMIZERS(PERIGEE_STEP)
#undef PERIGEE_STEP

}  // namespace perigee::cuda
