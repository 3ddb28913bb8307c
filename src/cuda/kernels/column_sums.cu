#include "cuda/kernels/element.cuh"

namespace perigee::cuda {
namespace {

constexpr int kWarp = 32, kLanes = kThreads / kWarp;

// A block sums a range of rows of 32 packs: each warp every eighth row, one pack a thread.
template <class T>
__global__ void sums(const T* x, Wide<T>* partials, int64_t parts, Rows shape) {
  using W = Wide<T>;
  constexpr int kEach = Pack<T>::kElements, kColumns = kWarp * kEach;
  __shared__ W shared[kLanes][kColumns];
  const int64_t part = blockIdx.y, first = int64_t{blockIdx.x} * kColumns;
  const int64_t begin = shape.rows * part / parts, end = shape.rows * (part + 1) / parts;
  const int lane = threadIdx.x / kWarp, place = threadIdx.x % kWarp * kEach;
  W sum[kEach] = {};
  if (first + place < shape.columns) {
    for (int64_t row = begin + lane; row < end; row += kLanes) {
      const auto pack = load_pack(x + row * shape.columns + first + place);
      for (int j = 0; j < kEach; ++j) sum[j] += load(pack.values, j);
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

void column_sums(const void* x, void* partials, int64_t parts, Rows shape, Element element,
                 cudaStream_t stream) {
  if (shape.columns == 0 || parts == 0) return;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t columns = int64_t{kWarp} * Pack<T>::kElements;
    const dim3 grid(static_cast<unsigned>((shape.columns + columns - 1) / columns),
                    static_cast<unsigned>(parts));
    launch(sums<T>, grid, kThreads, stream, static_cast<const T*>(x),
           static_cast<Wide<T>*>(partials), parts, shape);
  });
}

}  // namespace perigee::cuda
