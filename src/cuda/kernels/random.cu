#include <type_traits>

#include "cuda/kernels/element.cuh"

namespace perigee::cuda {
namespace {

// Elements per thread: those of one Philox block where they are consecutive.
constexpr int kEach = 4;

template <class F>
__device__ void each_of_thread(const RandomPlace& place, F f) {
  const int64_t stride = int64_t{gridDim.x} * kThreads * kEach;
  for (int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach; first < place.numel;
       first += stride) {
    const int64_t end = first + kEach < place.numel ? first + kEach : place.numel;
    each_random(place, first, end, f);
  }
}

__device__ inline void put(float* p, int64_t i, double v) { p[i] = static_cast<float>(v); }
__device__ inline void put(double* p, int64_t i, double v) { p[i] = v; }
// Rounds to float32 first, as on the CPU.
__device__ inline void put(__nv_bfloat16* p, int64_t i, double v) {
  p[i] = __float2bfloat16_rn(static_cast<float>(v));
}
__device__ inline void put(__half* p, int64_t i, double v) {
  p[i] = __float2half_rn(static_cast<float>(v));
}
template <class T>
__device__ void put(T* p, int64_t i, double v) {
  p[i] = static_cast<T>(v);
}

template <class T>
__global__ void fill(T* out, Drawing drawing, RandomPlace place) {
  each_of_thread(place, [&](int64_t i, const exec::PhiloxWords& words, int lane) {
    if (drawing.kind != Drawing::integer) {
      put(out, i, draw(drawing, words, lane));
      return;
    }
    const int64_t value = exec::integer_of(words.w[lane], drawing.low, drawing.range);
    if constexpr (std::is_same_v<T, int64_t>) {
      out[i] = value;
    } else {
      put(out, i, static_cast<double>(value));
    }
  });
}

template <class T>
__global__ void drop(const T* self, T* out, uint64_t threshold, Wide<T> scale, RandomPlace place) {
  each_of_thread(place, [&](int64_t i, const exec::PhiloxWords& words, int lane) {
    store(out, i, keeps(threshold, words, lane) ? load(self, i) * scale : Wide<T>(0));
  });
}

template <class F>
void dispatch(Element element, F f) {
  switch (element) {
    case Element::int64:
      return f(static_cast<int64_t*>(nullptr));
    case Element::int32:
      return f(static_cast<int32_t*>(nullptr));
    case Element::uint8:
      return f(static_cast<uint8_t*>(nullptr));
    case Element::boolean:
      return f(static_cast<bool*>(nullptr));
    default:
      return dispatch_floating(element, f);
  }
}

}  // namespace

void fill_random(void* out, Element element, const Drawing& drawing, const RandomPlace& place,
                 cudaStream_t stream) {
  if (place.numel == 0) return;
  dispatch(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(fill<T>, blocks_for(place.numel, kEach), kThreads, stream, static_cast<T*>(out), drawing,
           place);
  });
}

void dropout(const void* self, void* out, Element element, double p, const RandomPlace& place,
             cudaStream_t stream) {
  if (place.numel == 0) return;
  const double clamped = p < 0 ? 0 : p > 1 ? 1 : p;
  const auto threshold = static_cast<uint64_t>(llround(clamped * 4294967296.0));
  const double scale = threshold > UINT32_MAX ? 0 : 1 / (1 - p);
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(drop<T>, blocks_for(place.numel, kEach), kThreads, stream, static_cast<const T*>(self),
           static_cast<T*>(out), threshold, static_cast<Wide<T>>(scale), place);
  });
}

}  // namespace perigee::cuda
