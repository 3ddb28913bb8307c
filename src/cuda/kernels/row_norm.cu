#include <stdexcept>
#include <type_traits>

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

// As many elements as a pack of another type has, in one access.
template <class O, int n>
struct alignas(n * sizeof(O)) Few {
  O values[n];
  __device__ static bool begins_at(const O* p) {
    return reinterpret_cast<uintptr_t>(p) % sizeof(Few) == 0;
  }
};

// Reads the elements i, i + 1, ... of a tensor whose type may be another than that of the packs.
template <class T, class O, int n>
__device__ void load_other(const O* p, int64_t i, Wide<T> (&values)[n]) {
  if constexpr (std::is_same_v<T, O>) {
    load_values(p, i, values);
  } else if (Few<O, n>::begins_at(p + i)) {
    const auto few = *reinterpret_cast<const Few<O, n>*>(p + i);
    for (int j = 0; j < n; ++j) values[j] = load(few.values, j);
  } else {
    for (int j = 0; j < n; ++j) values[j] = load(p, i + j);
  }
}

// Writes the elements that load_other reads.
template <class T, class O, int n>
__device__ void store_other(O* p, int64_t i, const Wide<T> (&values)[n]) {
  if constexpr (std::is_same_v<T, O>) {
    store_values(p, i, values);
  } else if (Few<O, n>::begins_at(p + i)) {
    Few<O, n> few;
    for (int j = 0; j < n; ++j) store(few.values, j, values[j]);
    *reinterpret_cast<Few<O, n>*>(p + i) = few;
  } else {
    for (int j = 0; j < n; ++j) store(p, i + j, values[j]);
  }
}

// Returns the pointer where its type is T: of rows whose packs begin at the same elements.
template <class T, class O>
__device__ const T* if_same(const O* p) {
  if constexpr (std::is_same_v<T, O>) return p;
  return nullptr;
}

// One block per row; a block continues with rows beyond the grid. A thread reads only such elements
// of `sum` as it wrote. other, sum: nullptr, or what is added to x, and the result.
template <class T, class O, class Y>
__global__ void forward(const T* x, const O* other, T* sum, const T* weight, const T* bias, Y* y,
                        Wide<T>* mean, Wide<T>* rstd, Rows shape, Wide<T> eps) {
  using W = Wide<T>;
  const int64_t n = shape.columns;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const int64_t at = row * n;
    const T* from = x + at;
    Y* to = y + at;
    const int64_t head = other ? head_of(from, n, if_same<T>(to), sum + at, if_same<T>(other + at))
                               : head_of(from, n, if_same<T>(to));
    if (other) {
      for_row(from, n, head, [&](int64_t i, auto& values) {
        std::remove_reference_t<decltype(values)> added;
        load_other<T>(other + at, i, added);
        for (auto& value : values) value += added[&value - values];
        store_values(sum + at, i, values);
      });
      from = sum + at;
    }
    W m = 0;
    if (mean) {
      W total = 0;
      for_row(from, n, head, [&](int64_t, const auto& values) {
        for (const W& value : values) total += value;
      });
      m = block_sum(total) / static_cast<W>(n);
      if (threadIdx.x == 0) mean[row] = m;
    }
    W squares = 0;
    for_row(from, n, head, [&](int64_t, const auto& values) {
      for (const W& value : values) squares += (value - m) * (value - m);
    });
    const W r = 1 / sqrt(block_sum(squares) / static_cast<W>(n) + eps);
    if (threadIdx.x == 0) rstd[row] = r;
    for_row(from, n, head, [&](int64_t first, auto& values) {
      for (W& value : values) {
        const int64_t i = first + (&value - values);
        value = (value - m) * r * (weight ? load(weight, i) : W(1)) + (bias ? load(bias, i) : W(0));
      }
      store_other<T>(to, first, values);
    });
  }
}

// d_x may be the memory of g, of x or of other (nullptr, or what is added to d_x). mean: nullptr
// for RMS norm.
template <class T, class G>
__global__ void backward(const G* g, const T* x, const T* weight, const Wide<T>* mean,
                         const Wide<T>* rstd, const T* other, T* d_x, Rows shape) {
  using W = Wide<T>;
  const int64_t n = shape.columns;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const int64_t at = row * n;
    const T* same = if_same<T>(g + at);
    const int64_t head = other ? head_of(x + at, n, same, d_x + at, other + at)
                               : head_of(x + at, n, same, d_x + at);
    const W r = rstd[row], m = mean ? mean[row] : W(0);
    const auto scaled = [&](W upstream, int64_t i) {
      return upstream * (weight ? load(weight, i) : W(1));
    };
    W dot = 0, total = 0;
    for_row(x + at, n, head, [&](int64_t first, const auto& values) {
      std::remove_const_t<std::remove_reference_t<decltype(values)>> upstream;
      load_other<T>(g + at, first, upstream);
      for (const W& value : values) {
        const auto j = &value - values;
        const W part = scaled(upstream[j], first + j);
        dot += part * (value - m);
        total += part;
      }
    });
    const W along = block_sum(dot) * r * r / static_cast<W>(n);
    const W offset = mean ? block_sum(total) / static_cast<W>(n) : W(0);
    for_row(x + at, n, head, [&](int64_t first, auto& values) {
      std::remove_reference_t<decltype(values)> upstream, added = {};
      load_other<T>(g + at, first, upstream);
      if (other) load_values(other + at, first, added);
      for (W& value : values) {
        const auto j = &value - values;
        value = (scaled(upstream[j], first + j) - offset - (value - m) * along) * r + added[j];
      }
      store_values(d_x + at, first, values);
    });
  }
}

// One thread per column and part; consecutive threads read consecutive columns. of_weight, of_bias:
// partial sums, or nullptr.
template <class T, class G>
__global__ void partial_sums(const G* g, const T* x, const Wide<T>* mean, const Wide<T>* rstd,
                             Wide<T>* of_weight, Wide<T>* of_bias, int64_t parts, Rows shape) {
  const int64_t part = blockIdx.y;
  const int64_t begin = shape.rows * part / parts, end = shape.rows * (part + 1) / parts;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x; column < shape.columns;
       column += stride) {
    Wide<T> weight = 0, bias = 0;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * shape.columns + column;
      const Wide<T> upstream = load(g, at);
      bias += upstream;
      if (of_weight) weight += upstream * (load(x, at) - (mean ? mean[row] : 0)) * rstd[row];
    }
    if (of_weight) of_weight[part * shape.columns + column] = weight;
    if (of_bias) of_bias[part * shape.columns + column] = bias;
  }
}

unsigned row_blocks(int64_t rows) {
  return static_cast<unsigned>(rows < 1 ? 1 : rows > 65535 ? 65535 : rows);
}

// Calls f with a null pointer of the element type of rows that are T, or 16 bits wide beside float32.
template <class T, class F>
void dispatch_beside(Element element, F f) {
  if constexpr (std::is_same_v<T, float>) {
    if (element == Element::bfloat16) return f(static_cast<__nv_bfloat16*>(nullptr));
    if (element == Element::float16) return f(static_cast<__half*>(nullptr));
    if (element != Element::float32) throw std::invalid_argument("a norm has no such type");
  }
  f(static_cast<T*>(nullptr));
}

}  // namespace

void row_norm(const RowNorm& norm, const Added& added, void* y, double eps, cudaStream_t stream) {
  if (norm.shape.rows * norm.shape.columns == 0) return;
  dispatch_floating(norm.element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    dispatch_beside<T>(added.other ? added.element : norm.element, [&](auto* other_type) {
      using O = std::remove_pointer_t<decltype(other_type)>;
      dispatch_beside<T>(norm.outer, [&](auto* outer_type) {
        using Y = std::remove_pointer_t<decltype(outer_type)>;
        launch(forward<T, O, Y>, row_blocks(norm.shape.rows), kThreads, stream,
               static_cast<const T*>(norm.x), static_cast<const O*>(added.other),
               static_cast<T*>(added.sum), static_cast<const T*>(norm.weight),
               static_cast<const T*>(norm.bias), static_cast<Y*>(y),
               static_cast<Wide<T>*>(norm.mean), static_cast<Wide<T>*>(norm.rstd), norm.shape,
               static_cast<Wide<T>>(eps));
      });
    });
  });
}

void row_norm_backward(const RowNorm& norm, const void* g, const void* other, void* d_x,
                       cudaStream_t stream) {
  if (norm.shape.rows * norm.shape.columns == 0) return;
  dispatch_floating(norm.element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    dispatch_beside<T>(norm.outer, [&](auto* outer_type) {
      using G = std::remove_pointer_t<decltype(outer_type)>;
      launch(backward<T, G>, row_blocks(norm.shape.rows), kThreads, stream,
             static_cast<const G*>(g), static_cast<const T*>(norm.x),
             static_cast<const T*>(norm.weight), static_cast<const Wide<T>*>(norm.mean),
             static_cast<const Wide<T>*>(norm.rstd), static_cast<const T*>(other),
             static_cast<T*>(d_x), norm.shape);
    });
  });
}

void row_norm_partials(const RowNorm& norm, const void* g, void* of_weight, void* of_bias,
                       int64_t parts, cudaStream_t stream) {
  if (norm.shape.columns == 0 || parts == 0) return;
  dispatch_floating(norm.element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const dim3 grid(blocks_for(norm.shape.columns), static_cast<unsigned>(parts));
    dispatch_beside<T>(norm.outer, [&](auto* outer_type) {
      using G = std::remove_pointer_t<decltype(outer_type)>;
      launch(partial_sums<T, G>, grid, kThreads, stream, static_cast<const G*>(g),
             static_cast<const T*>(norm.x), static_cast<const Wide<T>*>(norm.mean),
             static_cast<const Wide<T>*>(norm.rstd), static_cast<Wide<T>*>(of_weight),
             static_cast<Wide<T>*>(of_bias), parts, norm.shape);
    });
  });
}

}  // namespace perigee::cuda
