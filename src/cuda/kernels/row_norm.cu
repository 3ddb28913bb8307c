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

// Reads the elements i, i + 1, ... of a tensor at any address.
template <class O, class W, int n>
__device__ void load_few(const O* p, int64_t i, W (&values)[n]) {
  if (Few<O, n>::begins_at(p + i)) {
    const auto few = *reinterpret_cast<const Few<O, n>*>(p + i);
    for (int j = 0; j < n; ++j) values[j] = load(few.values, j);
  } else {
    for (int j = 0; j < n; ++j) values[j] = load(p, i + j);
  }
}

// Reads the elements i, i + 1, ... of a tensor whose type may be another than that of the packs.
template <class T, class O, int n>
__device__ void load_other(const O* p, int64_t i, Wide<T> (&values)[n]) {
  if constexpr (std::is_same_v<T, O>) {
    load_values(p, i, values);
  } else {
    load_few(p, i, values);
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

// Rows in a lower precision than float32, or nothing.
struct Low {
  void* data;
  bool is_bfloat16;  // else float16

  // Writes the elements i, i + 1, ..., which become what was written.
  template <class W, int n>
  __device__ void store_rounded(int64_t i, W (&values)[n]) const {
    if constexpr (std::is_same_v<W, float>) {
      if (is_bfloat16) {
        store_as(static_cast<__nv_bfloat16*>(data), i, values);
      } else {
        store_as(static_cast<__half*>(data), i, values);
      }
    }
  }

 private:
  template <class O, int n>
  __device__ void store_as(O* p, int64_t i, float (&values)[n]) const {
    O rounded[n];
    for (int j = 0; j < n; ++j) {
      store(rounded, j, values[j]);
      values[j] = load(rounded, j);
    }
    store_other<float>(p, i, values);
  }
};

// The gradients of a norm of x [rows, columns] for the upstream gradient g.
template <class T, class G>
struct Backward {
  const G* g;
  const T *x, *weight;          // weight: nullptr: 1
  const Wide<T>*mean, *rstd;    // mean: nullptr for RMS norm
  const T* other;               // what is added to d_x, or nullptr
  T* d_x;                       // may be the memory of g, of x or of other
  Low low;                      // d_x in a lower precision
  Wide<T>*of_weight, *of_bias;  // [parts, columns] partial sums, or nullptr
  Wide<T>* of_low;
  int64_t parts;
  Rows shape;

  // Returns the part of a row's gradient that comes from its mean. total: the sum of g weight.
  __device__ Wide<T> offset(Wide<T> total) const {
    return mean ? total / static_cast<Wide<T>>(shape.columns) : Wide<T>(0);
  }
};

// One block per row; a block continues with rows beyond the grid.
template <class T, class G>
__global__ void backward(Backward<T, G> b) {
  using W = Wide<T>;
  const int64_t n = b.shape.columns;
  for (int64_t row = blockIdx.x; row < b.shape.rows; row += gridDim.x) {
    const int64_t at = row * n;
    const T* same = if_same<T>(b.g + at);
    const int64_t head = b.other ? head_of(b.x + at, n, same, b.d_x + at, b.other + at)
                                 : head_of(b.x + at, n, same, b.d_x + at);
    const W r = b.rstd[row], m = b.mean ? b.mean[row] : W(0);
    const auto scaled = [&](W upstream, int64_t i) {
      return upstream * (b.weight ? load(b.weight, i) : W(1));
    };
    Two<W> sums = {};
    for_row(b.x + at, n, head, [&](int64_t first, const auto& values) {
      std::remove_const_t<std::remove_reference_t<decltype(values)>> upstream;
      load_other<T>(b.g + at, first, upstream);
      for (const W& value : values) {
        const auto j = &value - values;
        const W part = scaled(upstream[j], first + j);
        sums.first += part * (value - m);
        sums.second += part;
      }
    });
    sums = block_sum(sums);
    const W along = sums.first * r * r / static_cast<W>(n);
    const W offset = b.offset(sums.second);
    for_row(b.x + at, n, head, [&](int64_t first, auto& values) {
      std::remove_reference_t<decltype(values)> upstream, added = {};
      load_other<T>(b.g + at, first, upstream);
      if (b.other) load_values(b.other + at, first, added);
      for (W& value : values) {
        const auto j = &value - values;
        value = (scaled(upstream[j], first + j) - offset - (value - m) * along) * r + added[j];
      }
      store_values(b.d_x + at, first, values);
      if (b.low.data) b.low.store_rounded(at + first, values);
    });
  }
}

// One block per part, which takes its rows one after the other. A thread has the packs t, t + kThreads,
// ... of each row, at most kPacks, and sums their columns. Rows are whole packs at multiples of 16 bytes.
template <class T, class G, int kPacks>
__global__ void backward_in_parts(Backward<T, G> b) {
  using W = Wide<T>;
  constexpr int kEach = Pack<T>::kElements;
  const int64_t n = b.shape.columns, part = blockIdx.x;
  const int64_t begin = b.shape.rows * part / b.parts, end = b.shape.rows * (part + 1) / b.parts;
  const auto each_pack = [&](auto f) {
    for (int p = 0; p < kPacks; ++p) {
      const int64_t i = (int64_t{p} * kThreads + threadIdx.x) * kEach;
      if (i < n) f(p, i);
    }
  };
  W of_weight[kPacks][kEach] = {}, of_bias[kPacks][kEach] = {}, of_low[kPacks][kEach] = {};
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * n;
    const W r = b.rstd[row], m = b.mean ? b.mean[row] : W(0);
    W normalised[kPacks][kEach], scaled[kPacks][kEach];
    Two<W> sums = {};
    each_pack([&](int p, int64_t i) {
      W upstream[kEach], weight[kEach];
      load_values(b.x + at, i, normalised[p]);
      load_other<T>(b.g + at, i, upstream);
      if (b.weight) load_few(b.weight, i, weight);
      for (int j = 0; j < kEach; ++j) {
        normalised[p][j] = (normalised[p][j] - m) * r;
        scaled[p][j] = upstream[j] * (b.weight ? weight[j] : W(1));
        of_weight[p][j] += upstream[j] * normalised[p][j];
        of_bias[p][j] += upstream[j];
        sums.first += scaled[p][j] * normalised[p][j];
        sums.second += scaled[p][j];
      }
    });
    sums = block_sum(sums);
    const W along = sums.first / static_cast<W>(n);
    const W offset = b.offset(sums.second);
    each_pack([&](int p, int64_t i) {
      W values[kEach], added[kEach] = {};
      if (b.other) load_values(b.other + at, i, added);
      for (int j = 0; j < kEach; ++j) {
        values[j] = (scaled[p][j] - offset - normalised[p][j] * along) * r + added[j];
      }
      store_values(b.d_x + at, i, values);
      if (!b.low.data) return;
      b.low.store_rounded(at + i, values);
      for (int j = 0; j < kEach; ++j) of_low[p][j] += values[j];
    });
  }
  const auto put = [&](W* partials, const W(&sums)[kPacks][kEach]) {
    if (!partials) return;
    each_pack([&](int p, int64_t i) {
      for (int j = 0; j < kEach; ++j) partials[part * n + i + j] = sums[p][j];
    });
  };
  put(b.of_weight, of_weight);
  put(b.of_bias, of_bias);
  put(b.of_low, of_low);
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

namespace {

// Returns whether rows of packs begin at multiples of 16 bytes.
template <class T>
bool has_packs(const T* rows, int64_t columns) {
  return elements_to_pack(rows) == 0 && columns % Pack<T>::kElements == 0;
}

template <class T, class G>
void sum_of_rows(const G* rows, Wide<T>* partials, int64_t parts, Rows shape, cudaStream_t stream) {
  const dim3 grid(blocks_for(shape.columns), static_cast<unsigned>(parts));
  const T* none = nullptr;
  const Wide<T>* no_statistics = nullptr;
  Wide<T>* not_needed = nullptr;
  launch(partial_sums<T, G>, grid, kThreads, stream, rows, none, no_statistics, no_statistics,
         not_needed, partials, parts, shape);
}

// Rows of any length, at any address: in two or three passes.
template <class T, class G>
void backward_in_passes(const Backward<T, G>& b, cudaStream_t stream) {
  if (b.of_weight || b.of_bias) {  // first, since d_x may be the memory of an operand
    const dim3 grid(blocks_for(b.shape.columns), static_cast<unsigned>(b.parts));
    launch(partial_sums<T, G>, grid, kThreads, stream, b.g, b.x, b.mean, b.rstd, b.of_weight,
           b.of_bias, b.parts, b.shape);
  }
  if (!b.d_x) return;
  launch(backward<T, G>, row_blocks(b.shape.rows), kThreads, stream, b);
  if constexpr (std::is_same_v<T, float>) {
    if (!b.of_low) return;
    b.low.is_bfloat16 ? sum_of_rows<T>(static_cast<const __nv_bfloat16*>(b.low.data), b.of_low,
                                       b.parts, b.shape, stream)
                      : sum_of_rows<T>(static_cast<const __half*>(b.low.data), b.of_low, b.parts,
                                       b.shape, stream);
  }
}

template <class T, class G>
void backward_of(const Backward<T, G>& b, cudaStream_t stream) {
  const int64_t n = b.shape.columns, packs = (n / Pack<T>::kElements + kThreads - 1) / kThreads;
  const bool whole = b.d_x && has_packs(b.x, n) && has_packs<T>(b.d_x, n) &&
                     (!b.other || has_packs(b.other, n)) &&
                     (!std::is_same_v<T, G> || has_packs(b.g, n));
  const auto start = [&](auto kernel) {
    launch(kernel, dim3(static_cast<unsigned>(b.parts)), kThreads, stream, b);
  };
  if (!whole || packs > 4) return backward_in_passes(b, stream);
  packs == 1   ? start(backward_in_parts<T, G, 1>)
  : packs == 2 ? start(backward_in_parts<T, G, 2>)
               : start(backward_in_parts<T, G, 4>);
}

}  // namespace

void row_norm_backward(const RowNorm& norm, const void* g, const NormGradients& to,
                       cudaStream_t stream) {
  if (norm.shape.rows * norm.shape.columns == 0 || to.parts == 0) return;
  dispatch_floating(norm.element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using W = Wide<T>;
    dispatch_beside<T>(norm.outer, [&](auto* outer_type) {
      using G = std::remove_pointer_t<decltype(outer_type)>;
      backward_of(Backward<T, G>{.g = static_cast<const G*>(g),
                                 .x = static_cast<const T*>(norm.x),
                                 .weight = static_cast<const T*>(norm.weight),
                                 .mean = static_cast<const W*>(norm.mean),
                                 .rstd = static_cast<const W*>(norm.rstd),
                                 .other = static_cast<const T*>(to.other),
                                 .d_x = static_cast<T*>(to.d_x),
                                 .low = {to.low, to.low_element == Element::bfloat16},
                                 .of_weight = static_cast<W*>(to.of_weight),
                                 .of_bias = static_cast<W*>(to.of_bias),
                                 .of_low = static_cast<W*>(to.of_low),
                                 .parts = to.parts,
                                 .shape = norm.shape},
                  stream);
    });
  });
}

}  // namespace perigee::cuda
