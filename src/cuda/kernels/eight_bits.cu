// Numbers rounded to eight-bit floats.
#include <cuda_fp8.h>

#include "cuda/kernels/element.cuh"

namespace perigee::cuda {
namespace {

// Rounds to nearest even, saturating; NaN stays NaN.
template <class T>
__global__ void cast(const T* x, const float* scale, uint8_t* y, int64_t n,
                     __nv_fp8_interpretation_t format) {
  const float factor = *scale;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    y[i] = __nv_cvt_float_to_fp8(static_cast<float>(load(x, i)) * factor, __NV_SATFINITE, format);
  }
}

}  // namespace

void cast_to_eight_bits(const void* x, const float* scale, void* y, int64_t n, Element element,
                        bool e5m2, cudaStream_t stream) {
  if (n == 0) return;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(cast<T>, blocks_for(n, 4), kThreads, stream, static_cast<const T*>(x), scale,
           static_cast<uint8_t*>(y), n, e5m2 ? __NV_E5M2 : __NV_E4M3);
  });
}

}  // namespace perigee::cuda
