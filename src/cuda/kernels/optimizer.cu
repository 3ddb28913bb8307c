#include "cuda/kernels/element.cuh"

namespace perigee::cuda {
namespace {

// Numbers of one step, as exec/kernels/optimizer.cc has them.
template <class W>
struct Adam {
  W shrink, decay, scale, one_minus_beta1, beta2, one_minus_beta2, step_size, root2, eps;
};

template <class W>
struct Sgd {
  W scale, decay, momentum, one_minus_dampening, lr;
  bool first, nesterov;
};

template <class T>
__global__ void run_adam(T* p, T* m, T* v, const T* g, int64_t n, AdamNumbers numbers,
                         StepScalars scalars) {
  using W = Wide<T>;
  __shared__ Adam<W> shared;
  if (threadIdx.x == 0) {
    const double lr = *scalars.lr, step = *scalars.step;
    shared.shrink = static_cast<W>(numbers.decoupled ? 1 - lr * numbers.weight_decay : 1);
    shared.decay = static_cast<W>(numbers.decoupled ? 0 : numbers.weight_decay);
    shared.scale = static_cast<W>(scalars.scale ? *scalars.scale : 1);
    shared.one_minus_beta1 = static_cast<W>(1 - numbers.beta1);
    shared.beta2 = static_cast<W>(numbers.beta2);
    shared.one_minus_beta2 = static_cast<W>(1 - numbers.beta2);
    shared.step_size = static_cast<W>(lr / (1 - pow(numbers.beta1, step)));
    shared.root2 = static_cast<W>(sqrt(1 - pow(numbers.beta2, step)));
    shared.eps = static_cast<W>(numbers.eps);
  }
  __syncthreads();
  const Adam<W> s = shared;
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
  const Sgd<W> s = {static_cast<W>(scalars.scale ? *scalars.scale : 1),
                    static_cast<W>(numbers.weight_decay),
                    static_cast<W>(numbers.momentum),
                    static_cast<W>(1 - numbers.dampening),
                    static_cast<W>(*scalars.lr),
                    *scalars.step == 1,
                    numbers.nesterov};
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
