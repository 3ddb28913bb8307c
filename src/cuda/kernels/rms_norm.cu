#include "cuda/kernels/element.cuh"

namespace perigee::cuda {
namespace {

// Returns the elements before the first pack of a row, which begins at the same element of all
// tensors, or all elements where it does not.
template <class T, class... Others>
__device__ int64_t head_of(const T* row, int64_t columns, const Others*... others) {
  const bool aligned = (... && (!others || are_aligned(row, others)));
  return aligned ? elements_to_pack(row) : columns;
}

// One block per row; a block continues with rows beyond the grid. A thread reads only such elements
// of `sum` as it wrote. other, sum: nullptr, or what is added to x, and the result.
template <class T>
__global__ void forward(const T* x, const T* other, T* sum, const T* weight, T* y, Wide<T>* rstd,
                        Rows shape, Wide<T> eps) {
  using W = Wide<T>;
  const int64_t n = shape.columns;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const int64_t at = row * n;
    const T* from = x + at;
    T* to = y + at;
    const int64_t head = other ? head_of(from, n, to, other + at, sum + at) : head_of(from, n, to);
    if (other) {
      for_row(from, n, head, [&](int64_t i, auto& values) {
        std::remove_reference_t<decltype(values)> added;
        load_values(other + at, i, added);
        for (auto& value : values) value += added[&value - values];
        store_values(sum + at, i, values);
      });
      from = sum + at;
    }
    W squares = 0;
    for_row(from, n, head, [&](int64_t, const auto& values) {
      for (const W& value : values) squares += value * value;
    });
    const W r = 1 / sqrt(block_sum(squares) / static_cast<W>(n) + eps);
    if (threadIdx.x == 0) rstd[row] = r;
    for_row(from, n, head, [&](int64_t first, auto& values) {
      for (W& value : values) {
        value *= r * (weight ? load(weight, first + (&value - values)) : W(1));
      }
      store_values(to, first, values);
    });
  }
}

// d_x may be the memory of g, of x or of other (nullptr, or what is added to d_x).
template <class T>
__global__ void backward(const T* g, const T* x, const T* weight, const Wide<T>* rstd,
                         const T* other, T* d_x, Rows shape) {
  using W = Wide<T>;
  const int64_t n = shape.columns;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const int64_t at = row * n;
    const int64_t head = other ? head_of(g + at, n, x + at, d_x + at, other + at)
                               : head_of(g + at, n, x + at, d_x + at);
    const W r = rstd[row];
    const auto scaled = [&](W upstream, int64_t i) {
      return upstream * (weight ? load(weight, i) : W(1));
    };
    W dot = 0;
    for_row(g + at, n, head, [&](int64_t first, const auto& upstream) {
      std::remove_const_t<std::remove_reference_t<decltype(upstream)>> values;
      load_values(x + at, first, values);
      for (const W& value : values) {
        const auto j = &value - values;
        dot += scaled(upstream[j], first + j) * value;
      }
    });
    const W mean = block_sum(dot) * r * r / static_cast<W>(n);
    for_row(g + at, n, head, [&](int64_t first, auto& upstream) {
      std::remove_reference_t<decltype(upstream)> values, added = {};
      load_values(x + at, first, values);
      if (other) load_values(other + at, first, added);
      for (W& value : values) {
        const auto j = &value - values;
        value = (scaled(upstream[j], first + j) - value * mean) * r + added[j];
      }
      store_values(d_x + at, first, values);
    });
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

void rms_norm(const void* x, const void* other, void* sum, const void* weight, void* y, void* rstd,
              Rows shape, double eps, Element element, cudaStream_t stream) {
  if (shape.rows * shape.columns == 0) return;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(forward<T>, row_blocks(shape.rows), kThreads, stream, static_cast<const T*>(x),
           static_cast<const T*>(other), static_cast<T*>(sum), static_cast<const T*>(weight),
           static_cast<T*>(y), static_cast<Wide<T>*>(rstd), shape, static_cast<Wide<T>>(eps));
  });
}

void rms_norm_backward(const void* g, const void* x, const void* weight, const void* rstd,
                       const void* other, void* d_x, Rows shape, Element element,
                       cudaStream_t stream) {
  if (shape.rows * shape.columns == 0) return;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(backward<T>, row_blocks(shape.rows), kThreads, stream, static_cast<const T*>(g),
           static_cast<const T*>(x), static_cast<const T*>(weight),
           static_cast<const Wide<T>*>(rstd), static_cast<const T*>(other), static_cast<T*>(d_x),
           shape);
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
