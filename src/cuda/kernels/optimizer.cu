#include "cuda/kernels/element.cuh"

namespace perigee::cuda {
namespace {

__device__ exec::StepNumbers read(const StepScalars& scalars) {
  return {*scalars.lr, *scalars.step, scalars.scale ? *scalars.scale : 1,
          scalars.weight_decay ? *scalars.weight_decay : scalars.fixed_weight_decay};
}

// A new value, rounded to nearest or, with noise in [0, 1), up where that is below the part that is
// cut off.
template <class T>
__device__ void keep(T* p, int64_t i, Wide<T> v, const float*) {
  store(p, i, v);
}
__device__ void keep(__nv_bfloat16* p, int64_t i, float v, const float* noise) {
  if (!noise) return store(p, i, v);
  const unsigned bits = __float_as_uint(v);
  // The exponent of what is infinite or no number must not carry.
  const unsigned add =
      (bits & 0x7F800000) == 0x7F800000 ? 0 : 0xFFFF - static_cast<unsigned>(noise[i] * 65536.0f);
  p[i] = __ushort_as_bfloat16(static_cast<unsigned short>((bits + add) >> 16));
}

// Parameters T, states S, gradients G.
template <class T, class S, class G>
__global__ void run_adam(T* p, S* m, S* v, const G* g, const float* noise, int64_t n,
                         AdamNumbers numbers, StepScalars scalars) {
  using W = Wide<T>;
  __shared__ exec::AdamStep<W> shared;
  if (threadIdx.x == 0) shared = exec::adam_step<W>(numbers, read(scalars));
  __syncthreads();
  const auto s = shared;
  if (scalars.guarded && s.scale != s.scale) return;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += stride) {
    const W old = load(p, i);
    const W gradient = load(g, i) * s.scale + s.decay * old;
    const W m_new = load(m, i) + (gradient - load(m, i)) * s.one_minus_beta1;
    const W v_new = load(v, i) * s.beta2 + gradient * gradient * s.one_minus_beta2;
    store(m, i, m_new);
    store(v, i, v_new);
    keep(p, i, old * s.shrink - s.step_size * m_new / (sqrt(v_new) / s.root2 + s.eps), noise);
  }
}

template <class T, class S, class G>
__global__ void run_lion(T* p, S* m, const G* g, const float* noise, int64_t n, LionNumbers numbers,
                         StepScalars scalars) {
  using W = Wide<T>;
  const auto s = exec::lion_step<W>(numbers, read(scalars));
  if (scalars.guarded && s.scale != s.scale) return;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += stride) {
    const W gradient = load(g, i) * s.scale;
    const W average = load(m, i);
    const W step = average + (gradient - average) * s.one_minus_beta1;
    store(m, i, average + (gradient - average) * s.one_minus_beta2);
    const W sign = step > 0 ? W(1) : step < 0 ? W(-1) : step;  // NaN stays
    keep(p, i, load(p, i) * s.shrink - s.lr * sign, noise);
  }
}

template <class T, class S, class G>
__global__ void run_sgd(T* p, S* m, const G* g, const float* noise, int64_t n, SgdNumbers numbers,
                        StepScalars scalars) {
  using W = Wide<T>;
  const auto s = exec::sgd_step<W>(numbers, read(scalars));
  if (scalars.guarded && s.scale != s.scale) return;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += stride) {
    const W old = load(p, i);
    W change = load(g, i) * s.scale + s.decay * old;
    if (m) {
      const W sum = s.first ? change : s.momentum * load(m, i) + s.one_minus_dampening * change;
      store(m, i, sum);
      change = s.nesterov ? change + s.momentum * sum : sum;
    }
    keep(p, i, old - s.lr * change, noise);
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

}  // namespace

void adam(const AdamTensors& t, int64_t n, const OptimizerTypes& types, const AdamNumbers& numbers,
          const StepScalars& scalars, cudaStream_t stream) {
  if (n == 0) return;
  dispatch_types(types, [&](auto* p, auto* s, auto* g) {
    using T = std::remove_pointer_t<decltype(p)>;
    using S = std::remove_pointer_t<decltype(s)>;
    using G = std::remove_pointer_t<decltype(g)>;
    run_adam<T, S, G><<<blocks_for(n, 4), kThreads, 0, stream>>>(
        static_cast<T*>(t.parameter), static_cast<S*>(t.first), static_cast<S*>(t.second),
        static_cast<const G*>(t.gradient), t.noise, n, numbers, scalars);
  });
}

void lion(const LionTensors& t, int64_t n, const OptimizerTypes& types, const LionNumbers& numbers,
          const StepScalars& scalars, cudaStream_t stream) {
  if (n == 0) return;
  dispatch_types(types, [&](auto* p, auto* s, auto* g) {
    using T = std::remove_pointer_t<decltype(p)>;
    using S = std::remove_pointer_t<decltype(s)>;
    using G = std::remove_pointer_t<decltype(g)>;
    run_lion<T, S, G><<<blocks_for(n, 4), kThreads, 0, stream>>>(
        static_cast<T*>(t.parameter), static_cast<S*>(t.average), static_cast<const G*>(t.gradient),
        t.noise, n, numbers, scalars);
  });
}

void sgd(const SgdTensors& t, int64_t n, const OptimizerTypes& types, const SgdNumbers& numbers,
         const StepScalars& scalars, cudaStream_t stream) {
  if (n == 0) return;
  dispatch_types(types, [&](auto* p, auto* s, auto* g) {
    using T = std::remove_pointer_t<decltype(p)>;
    using S = std::remove_pointer_t<decltype(s)>;
    using G = std::remove_pointer_t<decltype(g)>;
    run_sgd<T, S, G><<<blocks_for(n, 4), kThreads, 0, stream>>>(
        static_cast<T*>(t.parameter), static_cast<S*>(t.momentum),
        static_cast<const G*>(t.gradient), t.noise, n, numbers, scalars);
  });
}

}  // namespace perigee::cuda
