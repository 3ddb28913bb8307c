#include "cuda/kernels/element.cuh"

namespace perigee::cuda {
namespace {

constexpr int kWarp = 32, kLanes = kThreads / kWarp;
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

// A block has a range of rows of 32 packs: each warp every eighth row, one pack a thread.
template <class T>
__global__ void backward(const T* g, const T* x, T* d, Wide<T>* partials, int64_t parts, Rows shape,
                         bool exact) {
  using W = Wide<T>;
  constexpr int kEach = Pack<T>::kElements, kColumns = kWarp * kEach;
  __shared__ W shared[kLanes][kColumns];
  const int64_t part = blockIdx.y, first = int64_t{blockIdx.x} * kColumns;
  const int64_t begin = shape.rows * part / parts, end = shape.rows * (part + 1) / parts;
  const int lane = threadIdx.x / kWarp, place = threadIdx.x % kWarp * kEach;
  W sum[kEach] = {};
  if (first + place < shape.columns) {
    for (int64_t row = begin + lane; row < end; row += kLanes) {
      const int64_t at = row * shape.columns + first + place;
      auto upstream = load_pack(g + at);
      const auto pack = load_pack(x + at);
      for (int j = 0; j < kEach; ++j) {
        const W gradient = load(upstream.values, j) * slope(load(pack.values, j), exact);
        sum[j] += gradient;
        store(upstream.values, j, gradient);
      }
      store_pack(d + at, upstream);
    }
  }
  for (int j = 0; j < kEach; ++j) shared[lane][place + j] = sum[j];
  __syncthreads();
  for (int i = threadIdx.x; i < kColumns && first + i < shape.columns; i += kThreads) {
    W total = 0;
    for (int k = 0; k < kLanes; ++k) total += shared[k][i];
    partials[part * shape.columns + first + i] = total;
  }
}

}  // namespace

void gelu_backward_sum(const void* g, const void* x, void* d, void* partials, int64_t parts,
                       Rows shape, bool exact, Element element, cudaStream_t stream) {
  if (shape.columns == 0 || parts == 0) return;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t columns = int64_t{kWarp} * Pack<T>::kElements;
    const dim3 grid(static_cast<unsigned>((shape.columns + columns - 1) / columns),
                    static_cast<unsigned>(parts));
    launch(backward<T>, grid, kThreads, stream, static_cast<const T*>(g), static_cast<const T*>(x),
           static_cast<T*>(d), static_cast<Wide<T>*>(partials), parts, shape, exact);
  });
}

}  // namespace perigee::cuda
