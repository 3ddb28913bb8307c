#include "cuda/kernels/element.cuh"

namespace perigee::cuda {
namespace {

// One block per row; a block continues with rows beyond the grid.
template <class T>
__global__ void forward(const T* x, const T* weight, T* y, Wide<T>* rstd, Rows shape, Wide<T> eps) {
  using W = Wide<T>;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const T* from = x + row * shape.columns;
    T* to = y + row * shape.columns;
    W squares = 0;
    for (int64_t i = threadIdx.x; i < shape.columns; i += kThreads) {
      squares += load(from, i) * load(from, i);
    }
    const W r = 1 / sqrt(block_sum(squares) / static_cast<W>(shape.columns) + eps);
    if (threadIdx.x == 0) rstd[row] = r;
    for (int64_t i = threadIdx.x; i < shape.columns; i += kThreads) {
      store(to, i, load(from, i) * r * (weight ? load(weight, i) : W(1)));
    }
  }
}

template <class T>
__global__ void backward(const T* g, const T* x, const T* weight, const Wide<T>* rstd, T* d_x,
                         Rows shape) {
  using W = Wide<T>;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const int64_t at = row * shape.columns;
    const W r = rstd[row];
    W dot = 0;
    for (int64_t i = threadIdx.x; i < shape.columns; i += kThreads) {
      dot += load(g, at + i) * (weight ? load(weight, i) : W(1)) * load(x, at + i);
    }
    const W mean = block_sum(dot) * r * r / static_cast<W>(shape.columns);
    for (int64_t i = threadIdx.x; i < shape.columns; i += kThreads) {
      const W scaled = load(g, at + i) * (weight ? load(weight, i) : W(1));
      store(d_x, at + i, (scaled - load(x, at + i) * mean) * r);
    }
  }
}

// One thread per column and part; consecutive threads read consecutive columns.
template <class T>
__global__ void weight_partials(const T* g, const T* x, const Wide<T>* rstd, Wide<T>* partials,
                                int64_t parts, Rows shape) {
  const int64_t part = blockIdx.y;
  const int64_t begin = shape.rows * part / parts, end = shape.rows * (part + 1) / parts;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x; column < shape.columns;
       column += stride) {
    Wide<T> sum = 0;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * shape.columns + column;
      sum += load(g, at) * load(x, at) * rstd[row];
    }
    partials[part * shape.columns + column] = sum;
  }
}

unsigned row_blocks(int64_t rows) {
  return static_cast<unsigned>(rows < 1 ? 1 : rows > 65535 ? 65535 : rows);
}

}  // namespace

void rms_norm(const void* x, const void* weight, void* y, void* rstd, Rows shape, double eps,
              Element element, cudaStream_t stream) {
  if (shape.rows * shape.columns == 0) return;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(forward<T>, row_blocks(shape.rows), kThreads, stream, static_cast<const T*>(x),
           static_cast<const T*>(weight), static_cast<T*>(y), static_cast<Wide<T>*>(rstd), shape,
           static_cast<Wide<T>>(eps));
  });
}

void rms_norm_backward(const void* g, const void* x, const void* weight, const void* rstd,
                       void* d_x, Rows shape, Element element, cudaStream_t stream) {
  if (shape.rows * shape.columns == 0) return;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(backward<T>, row_blocks(shape.rows), kThreads, stream, static_cast<const T*>(g),
           static_cast<const T*>(x), static_cast<const T*>(weight),
           static_cast<const Wide<T>*>(rstd), static_cast<T*>(d_x), shape);
  });
}

void rms_norm_weight(const void* g, const void* x, const void* rstd, void* partials, int64_t parts,
                     Rows shape, Element element, cudaStream_t stream) {
  if (shape.columns == 0 || parts == 0) return;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const dim3 grid(blocks_for(shape.columns), static_cast<unsigned>(parts));
    launch(weight_partials<T>, grid, kThreads, stream, static_cast<const T*>(g),
           static_cast<const T*>(x), static_cast<const Wide<T>*>(rstd),
           static_cast<Wide<T>*>(partials), parts, shape);
  });
}

}  // namespace perigee::cuda
