#include "cuda/kernels/element.cuh"

namespace perigee::cuda {
namespace {

template <class W>
__device__ W sigmoid(W x) {
  return 1 / (1 + exp(-x));
}

// Elements [begin, end), kEach at a time.
template <class T, int kEach>
__global__ void forward(const T* gate, const T* up, T* y, int64_t begin, int64_t end) {
  const int64_t step = int64_t{gridDim.x} * kThreads * kEach;
  const int64_t first = begin + (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach;
  for (int64_t i = first; i < end; i += step) {
    Wide<T> a[kEach], b[kEach];
    load_values(gate, i, a);
    load_values(up, i, b);
    for (int j = 0; j < kEach; ++j) a[j] *= sigmoid(a[j]) * b[j];
    store_values(y, i, a);
  }
}

template <class T, int kEach>
__global__ void backward(const T* g, const T* gate, const T* up, T* d_gate, T* d_up, int64_t begin,
                         int64_t end) {
  const int64_t step = int64_t{gridDim.x} * kThreads * kEach;
  const int64_t first = begin + (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach;
  for (int64_t i = first; i < end; i += step) {
    Wide<T> upstream[kEach], a[kEach], b[kEach];
    load_values(g, i, upstream);
    load_values(gate, i, a);
    load_values(up, i, b);
    for (int j = 0; j < kEach; ++j) {
      const auto s = sigmoid(a[j]);
      const auto slope = s * (1 + a[j] * (1 - s));
      b[j] *= upstream[j] * slope;
      a[j] *= upstream[j] * s;
    }
    store_values(d_gate, i, b);
    store_values(d_up, i, a);
  }
}

// Calls f(kernel's elements at a time, begin, end) for whole packs and for what remains.
template <class T, class F>
void in_packs(int64_t n, bool aligned, F f) {
  constexpr int kEach = Pack<T>::kElements;
  const int64_t packed = aligned ? n / kEach * kEach : 0;
  if (packed > 0) f(std::integral_constant<int, kEach>(), 0, packed);
  if (packed < n) f(std::integral_constant<int, 1>(), packed, n);
}

template <class T>
bool begins_a_pack(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

}  // namespace

void swiglu(const void* gate, const void* up, void* y, int64_t n, Element element,
            cudaStream_t stream) {
  const bool aligned = begins_a_pack(gate) && begins_a_pack(up) && begins_a_pack(y);
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    in_packs<T>(n, aligned, [&](auto each, int64_t begin, int64_t end) {
      launch(forward<T, each()>, blocks_for(end - begin, each()), kThreads, stream,
             static_cast<const T*>(gate), static_cast<const T*>(up), static_cast<T*>(y), begin,
             end);
    });
  });
}

void swiglu_backward(const void* g, const void* gate, const void* up, void* d_gate, void* d_up,
                     int64_t n, Element element, cudaStream_t stream) {
  const bool aligned = begins_a_pack(g) && begins_a_pack(gate) && begins_a_pack(up) &&
                       begins_a_pack(d_gate) && begins_a_pack(d_up);
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    in_packs<T>(n, aligned, [&](auto each, int64_t begin, int64_t end) {
      launch(backward<T, each()>, blocks_for(end - begin, each()), kThreads, stream,
             static_cast<const T*>(g), static_cast<const T*>(gate), static_cast<const T*>(up),
             static_cast<T*>(d_gate), static_cast<T*>(d_up), begin, end);
    });
  });
}

}  // namespace perigee::cuda
