#include "cuda/kernels/column_sums.cuh"

namespace perigee::cuda {
namespace {

template <class T>
__global__ void sums(const T* x, Wide<T>* partials, int64_t parts, Rows shape) {
  sum_columns<T>([&](int64_t i, auto& values) { load_values(x, i, values); }, partials, parts,
                 shape);
}

}  // namespace

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
