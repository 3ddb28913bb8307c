#include "cuda/kernels/element.cuh"

namespace perigee::cuda {
namespace {

__device__ exec::StepNumbers read(const StepScalars& scalars) {
  return {*scalars.lr, *scalars.step, scalars.scale ? *scalars.scale : 1};
}

template <class T>
__global__ void run_adam(T* p, T* m, T* v, const T* g, int64_t n, AdamNumbers numbers,
                         StepScalars scalars) {
  using W = Wide<T>;
  __shared__ exec::AdamStep<W> shared;
  if (threadIdx.x == 0) shared = exec::adam_step<W>(numbers, read(scalars));
  __syncthreads();
  const auto s = shared;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += stride) {
    const W old = load(p, i);
    const W gradient = load(g, i) * s.scale + s.decay * old;
    const W m_new = load(m, i) + (gradient - load(m, i)) * s.one_minus_beta1;
    const W v_new = load(v, i) * s.beta2 + gradient * gradient * s.one_minus_beta2;
    store(m, i, m_new);
    store(v, i, v_new);
    store(p, i, old * s.shrink - s.step_size * m_new / (sqrt(v_new) / s.root2 + s.eps));
  }
}

template <class T>
__global__ void run_sgd(T* p, T* m, const T* g, int64_t n, SgdNumbers numbers,
                        StepScalars scalars) {
  using W = Wide<T>;
  const auto s = exec::sgd_step<W>(numbers, read(scalars));
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += stride) {
    const W old = load(p, i);
    W change = load(g, i) * s.scale + s.decay * old;
    if (m) {
      const W sum = s.first ? change : s.momentum * load(m, i) + s.one_minus_dampening * change;
      store(m, i, sum);
      change = s.nesterov ? change + s.momentum * sum : sum;
    }
    store(p, i, old - s.lr * change);
  }
}

}  // namespace

void adam(const AdamTensors& t, int64_t n, Element element, const AdamNumbers& numbers,
          const StepScalars& scalars, cudaStream_t stream) {
  if (n == 0) return;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    run_adam<T><<<blocks_for(n, 4), kThreads, 0, stream>>>(
        static_cast<T*>(t.parameter), static_cast<T*>(t.first), static_cast<T*>(t.second),
        static_cast<const T*>(t.gradient), n, numbers, scalars);
  });
}

void sgd(const SgdTensors& t, int64_t n, Element element, const SgdNumbers& numbers,
         const StepScalars& scalars, cudaStream_t stream) {
  if (n == 0) return;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    run_sgd<T><<<blocks_for(n, 4), kThreads, 0, stream>>>(
        static_cast<T*>(t.parameter), static_cast<T*>(t.momentum),
        static_cast<const T*>(t.gradient), n, numbers, scalars);
  });
}

}  // namespace perigee::cuda
