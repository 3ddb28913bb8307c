#include "cuda/kernels/column_sums.cuh"

namespace perigee::cuda {
namespace {

constexpr double kRootHalf = 0.70710678118654752440;
constexpr double kDensity = 0.39894228040143267794;  // 1 / sqrt(2 pi)
constexpr double kInner = 0.79788456080286535588;    // sqrt(2 / pi)
constexpr double kCubic = 0.044715;

// GELU's derivative.
template <class W>
__device__ W slope(W x, bool exact) {
  if (exact) {
    return (1 + erf(x * W(kRootHalf))) * W(0.5) + x * W(kDensity) * exp(x * x * W(-0.5));
  }
  const W t = tanh((x + x * x * x * W(kCubic)) * W(kInner));
  return (1 + t) * W(0.5) + x * W(0.5) * (1 - t * t) * W(kInner) * (1 + x * x * W(3 * kCubic));
}

template <class T>
__global__ void backward(const T* g, const T* x, T* d, Wide<T>* partials, int64_t parts, Rows shape,
                         bool exact) {
  sum_columns<T>(
      [&](int64_t i, auto& values) {
        std::remove_reference_t<decltype(values)> upstream;
        load_values(g, i, upstream);
        load_values(x, i, values);
        for (auto& value : values) value = upstream[&value - values] * slope(value, exact);
        store_values(d, i, values);
      },
      partials, parts, shape);
}

}  // namespace

void gelu_backward_sum(const void* g, const void* x, void* d, void* partials, int64_t parts,
                       Rows shape, bool exact, Element element, cudaStream_t stream) {
  if (shape.columns == 0 || parts == 0) return;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(backward<T>, blocks_of_columns<T>(parts, shape), kThreads, stream,
           static_cast<const T*>(g), static_cast<const T*>(x), static_cast<T*>(d),
           static_cast<Wide<T>*>(partials), parts, shape, exact);
  });
}

}  // namespace perigee::cuda
