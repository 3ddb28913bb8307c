#include "cuda/kernels/column_sums.cuh"

namespace perigee::cuda {
namespace {

template <class T>
__global__ void sums(const T* x, Wide<T>* partials, int64_t parts, Rows shape) {
  sum_columns<T>([&](int64_t i, auto& values) { load_values(x, i, values); }, partials, parts,
                 shape);
}

// A block sums 32 columns of one of the partials: each warp every eighth row, one column a thread.
template <class W>
__global__ void sum_rows(const W* partials, int64_t parts, int64_t columns, PartSums sums) {
  __shared__ W shared[kWarps][kWarp];
  const int64_t column = int64_t{blockIdx.x} * kWarp + threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const W* from = partials + blockIdx.y * parts * columns;
  W sum = 0;
  if (column < columns) {
    for (int64_t p = warp; p < parts; p += kWarps) sum += from[p * columns + column];
  }
  shared[warp][threadIdx.x % kWarp] = sum;
  __syncthreads();
  if (warp > 0 || column >= columns) return;
  W total = 0;
  for (int k = 0; k < kWarps; ++k) total += shared[k][threadIdx.x];
  void* out = sums.out[blockIdx.y];
  switch (sums.elements[blockIdx.y]) {
    case Element::float32:
      return store(static_cast<float*>(out), column, static_cast<float>(total));
    case Element::float64:
      return store(static_cast<double*>(out), column, static_cast<double>(total));
    case Element::bfloat16:
      return store(static_cast<__nv_bfloat16*>(out), column, static_cast<float>(total));
    default:
      return store(static_cast<__half*>(out), column, static_cast<float>(total));
  }
}

}  // namespace

void sum_parts(const void* partials, int64_t parts, int64_t columns, Element element,
               const PartSums& sums, cudaStream_t stream) {
  if (columns == 0 || sums.count == 0) return;
  const dim3 grid(static_cast<unsigned>((columns + kWarp - 1) / kWarp),
                  static_cast<unsigned>(sums.count));
  const auto start = [&](auto* type) {
    using W = std::remove_pointer_t<decltype(type)>;
    launch(sum_rows<W>, grid, kThreads, stream, static_cast<const W*>(partials), parts, columns,
           sums);
  };
  element == Element::float64 ? start(static_cast<double*>(nullptr))
                              : start(static_cast<float*>(nullptr));
}

void column_sums(const void* x, void* partials, int64_t parts, Rows shape, Element element,
                 cudaStream_t stream) {
  if (shape.columns == 0 || parts == 0) return;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(sums<T>, blocks_of_columns<T>(parts, shape), kThreads, stream, static_cast<const T*>(x),
           static_cast<Wide<T>*>(partials), parts, shape);
  });
}

}  // namespace perigee::cuda
