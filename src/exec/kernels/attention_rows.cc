#include "exec/kernels/attention_rows.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "exec/kernels/attention_segments.h"
#include "exec/kernels/gemm.h"
#include "exec/kernels/lanes.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

constexpr int64_t kRows = 64;  // of a block

// Returns the matrix of one batch element and head.
template <class T>
Matrix<const T> read(const Tensor& t, int64_t b, int64_t h) {
  return {t.const_data_ptr<T>() + b * t.stride(0) + h * t.stride(1), t.stride(2)};
}
template <class T>
Matrix<T> write(const Tensor& t, int64_t b, int64_t h) {
  return {t.mutable_data_ptr<T>() + b * t.stride(0) + h * t.stride(1), t.stride(2)};
}

PERIGEE_INLINE int64_t lanes_left(int64_t i, int64_t n) {
  return n - i < kLanes ? n - i : int64_t{kLanes};
}
PERIGEE_INLINE float add_lanes(Floats v) {
  float sum = 0;
  for (int l = 0; l < kLanes; ++l) sum += v[l];
  return sum;
}

// x[k] = exp(x[k] - top) for k < n; returns their sum, and the largest in `top` (of none: -inf).
PERIGEE_SIMD float exponentials(float* x, int64_t n, float& top) {
  const float lowest = -std::numeric_limits<float>::infinity();
  Floats largest = splat(lowest);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Floats v = load_lanes(x + i, lanes_left(i, n), lowest);
    largest = v > largest ? v : largest;
  }
  top = lowest;
  for (int l = 0; l < kLanes; ++l) top = largest[l] > top ? largest[l] : top;
  Floats sum = splat(0);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = lanes_left(i, n);
    const Floats v = exp_negative(load_lanes(x + i, count, lowest) - top);
    store_lanes(x + i, v, count);
    sum += v;
  }
  return add_lanes(sum);
}

PERIGEE_SIMD void scale_row(float* x, int64_t n, float factor) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = lanes_left(i, n);
    store_lanes(x + i, load_lanes(x + i, count, 0) * factor, count);
  }
}

// p = exp(p - lse)
PERIGEE_SIMD void probabilities(float* p, int64_t n, float lse) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = lanes_left(i, n);
    store_lanes(p + i, exp_negative(load_lanes(p + i, count, 0) - lse), count);
  }
}

// d = p (d - dot) scale
PERIGEE_SIMD void score_gradients(float* d, const float* p, int64_t n, float dot, float scale) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = lanes_left(i, n);
    const Floats v = load_lanes(p + i, count, 0) * (load_lanes(d + i, count, 0) - dot) * scale;
    store_lanes(d + i, v, count);
  }
}

PERIGEE_SIMD float dot_product(const float* a, const float* b, int64_t n) {
  Floats sum = splat(0);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = lanes_left(i, n);
    sum += load_lanes(a + i, count, 0) * load_lanes(b + i, count, 0);
  }
  return add_lanes(sum);
}

// The same in float64, without vectors.
double exponentials(double* x, int64_t n, double& top) {
  top = n > 0 ? *std::max_element(x, x + n) : -std::numeric_limits<double>::infinity();
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    x[i] = std::exp(x[i] - top);
    sum += x[i];
  }
  return sum;
}

void scale_row(double* x, int64_t n, double factor) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

void probabilities(double* p, int64_t n, double lse) {
  for (int64_t i = 0; i < n; ++i) p[i] = std::exp(p[i] - lse);
}

void score_gradients(double* d, const double* p, int64_t n, double dot, double scale) {
  for (int64_t i = 0; i < n; ++i) d[i] = p[i] * (d[i] - dot) * scale;
}

double dot_product(const double* a, const double* b, int64_t n) {
  return std::inner_product(a, a + n, b, 0.0);
}

struct Sizes {
  int64_t batch, heads, groups, queries, keys, size, value_size;
  Sizes(const Tensor& q, const Tensor& k, const Tensor& v)
      : batch(q.size(0)),
        heads(q.size(1)),
        groups(k.size(1)),
        queries(q.size(2)),
        keys(k.size(2)),
        size(q.size(3)),
        value_size(v.size(3)) {}
};

// Returns a tensor [b, heads, rows, size] stored as `stored` = [b, rows, heads, size].
Tensor make_rows(const Tensor& like, at::IntArrayRef stored, bool zeroed) {
  auto t = zeroed ? at::zeros(stored, like.options()) : at::empty(stored, like.options());
  return t.transpose(1, 2);
}

// Runs f(b, group, scratch) for every group of heads, each thread with `scratch_rows` rows of
// `keys` elements.
template <class T, class F>
void each_group(const Sizes& n, int64_t scratch_rows, const Tensor& like, F f) {
  const int64_t work = n.batch * n.groups;
  const int64_t parts = std::min<int64_t>(at::get_num_threads(), work);
  const auto scratch = at::empty({parts, scratch_rows, n.keys}, like.options());
  T* data = scratch.mutable_data_ptr<T>();
  at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      for (int64_t w = work * p / parts; w < work * (p + 1) / parts; ++w) {
        f(w / n.groups, w % n.groups, data + p * scratch_rows * n.keys);
      }
    }
  });
}

// Up to kRows rows of queries and the range of keys that they see.
struct Block {
  int64_t row, rows, key, keys;
  bool causal;
  int64_t document;
  const int64_t* numbers;  // of the keys, where some are of other documents

  // Returns the number of leading keys among which are all that row `i` of the block sees; 0 if it
  // sees none.
  int64_t seen(int64_t i) const {
    const int64_t all = causal ? std::clamp<int64_t>(row + i + 1 - key, 0, keys) : keys;
    return numbers && std::find(numbers, numbers + all, document) == numbers + all ? 0 : all;
  }
  // Sets the elements of keys of other documents.
  template <class T>
  void mask(T* x, int64_t count, T value) const {
    if (!numbers) return;
    for (int64_t k = 0; k < count; ++k) {
      if (numbers[k] != document) x[k] = value;
    }
  }
};

// The blocks of each sequence.
class Blocks {
 public:
  Blocks(const Sizes& n, const RowAttention& options) : causal_(options.causal) {
    for (int64_t b = 0; b < n.batch; ++b) {
      if (!options.documents.defined()) {
        segments_.push_back({{.rows = n.queries, .keys = n.keys}});
        continue;
      }
      numbers_.push_back(options.key_documents.const_data_ptr<int64_t>() + b * n.keys);
      segments_.push_back(attention_segments(
          {options.documents.const_data_ptr<int64_t>() + b * n.queries, n.queries},
          {numbers_.back(), n.keys}));
    }
  }

  // Calls f(block) for the blocks of sequence b.
  template <class F>
  void each(int64_t b, F f) const {
    for (const auto& s : segments_[b]) {
      for (int64_t r = s.row; r < s.row + s.rows; r += kRows) {
        const int64_t rows = std::min(kRows, s.row + s.rows - r);
        const int64_t end = causal_ ? std::min(s.key + s.keys, r + rows) : s.key + s.keys;
        f(Block{r, rows, s.key, std::max<int64_t>(end - s.key, 0), causal_, s.document,
                s.all_keys ? nullptr : numbers_[b] + s.key});
      }
    }
  }

 private:
  bool causal_;
  std::vector<std::vector<AttentionSegment>> segments_;
  std::vector<const int64_t*> numbers_;
};

template <class T>
void clear_rows(Matrix<T> to, int64_t rows, int64_t size) {
  for (int64_t i = 0; i < rows; ++i) std::fill_n(to.from(i).data, size, T{0});
}

template <class T>
std::tuple<Tensor, Tensor> forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const RowAttention& options) {
  const Sizes n(query, key, value);
  const Blocks blocks(n, options);
  const auto scale = static_cast<T>(options.scale);
  constexpr T kLowest = -std::numeric_limits<T>::infinity();
  auto output = make_rows(query, {n.batch, n.queries, n.heads, n.value_size}, false);
  auto logsumexp = at::empty({n.batch, n.heads, n.queries}, query.options());
  T* lse = logsumexp.mutable_data_ptr<T>();
  const int64_t repeats = n.heads / n.groups;
  each_group<T>(n, kRows, query, [&](int64_t b, int64_t g, T* scratch) {
    const auto k = read<T>(key, b, g), v = read<T>(value, b, g);
    for (int64_t h = g * repeats; h < (g + 1) * repeats; ++h) {
      const auto q = read<T>(query, b, h);
      const auto out = write<T>(output, b, h);
      T* lse_row = lse + (b * n.heads + h) * n.queries;
      blocks.each(b, [&](const Block& block) {
        const int64_t r = block.row, rows = block.rows, seen = block.keys;
        if (seen == 0) {
          clear_rows(out.from(r), rows, n.value_size);
          std::fill_n(lse_row + r, rows, kLowest);
          return;
        }
        const Matrix<T> scores{scratch, seen};
        multiply({rows, seen, n.size}, scale, q.from(r), false, k.from(block.key), true, 0, scores);
        T sums[kRows];
        for (int64_t i = 0; i < rows; ++i) {
          T* row = scores.from(i).data;
          const int64_t own = block.seen(i);
          block.mask(row, own, kLowest);
          T top;
          sums[i] = exponentials(row, own, top);
          lse_row[r + i] = top + std::log(sums[i]);
          std::fill(row + own, row + seen, T{0});
        }
        multiply({rows, n.value_size, seen}, 1, {scratch, seen}, false, v.from(block.key), false, 0,
                 out.from(r));
        for (int64_t i = 0; i < rows; ++i) {
          scale_row(out.from(r + i).data, n.value_size, sums[i] > 0 ? 1 / sums[i] : T{0});
        }
      });
    }
  });
  return {std::move(output), std::move(logsumexp)};
}

template <class T>
std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad, const Tensor& query,
                                            const Tensor& key, const Tensor& value,
                                            const Tensor& output, const Tensor& logsumexp,
                                            const RowAttention& options) {
  const Sizes n(query, key, value);
  const Blocks blocks(n, options);
  const auto scale = static_cast<T>(options.scale);
  const auto saved = logsumexp.contiguous();
  const T* lse = saved.const_data_ptr<T>();
  auto d_query = make_rows(query, {n.batch, n.queries, n.heads, n.size}, false);
  auto d_key = make_rows(key, {n.batch, n.keys, n.groups, n.size}, true);
  auto d_value = make_rows(value, {n.batch, n.keys, n.groups, n.value_size}, true);
  const int64_t repeats = n.heads / n.groups;
  each_group<T>(n, 2 * kRows, query, [&](int64_t b, int64_t g, T* scratch) {
    const auto k = read<T>(key, b, g), v = read<T>(value, b, g);
    const auto dk = write<T>(d_key, b, g), dv = write<T>(d_value, b, g);
    for (int64_t h = g * repeats; h < (g + 1) * repeats; ++h) {
      const auto q = read<T>(query, b, h), dout = read<T>(grad, b, h), out = read<T>(output, b, h);
      const auto dq = write<T>(d_query, b, h);
      const T* lse_row = lse + (b * n.heads + h) * n.queries;
      blocks.each(b, [&](const Block& block) {
        const int64_t r = block.row, rows = block.rows, seen = block.keys;
        if (seen == 0) return clear_rows(dq.from(r), rows, n.size);
        const Matrix<T> p{scratch, seen}, d{scratch + kRows * n.keys, seen};
        const Matrix<const T> p_in{p.data, seen}, d_in{d.data, seen};
        const auto keys = k.from(block.key);
        multiply({rows, seen, n.size}, scale, q.from(r), false, keys, true, 0, p);
        multiply({rows, seen, n.value_size}, 1, dout.from(r), false, v.from(block.key), true, 0, d);
        for (int64_t i = 0; i < rows; ++i) {
          T *p_row = p.from(i).data, *d_row = d.from(i).data;
          const int64_t own = block.seen(i);
          probabilities(p_row, own, lse_row[r + i]);
          block.mask(p_row, own, T{0});
          const T dot = dot_product(dout.from(r + i).data, out.from(r + i).data, n.value_size);
          score_gradients(d_row, p_row, own, dot, scale);
          std::fill(p_row + own, p_row + seen, T{0});
          std::fill(d_row + own, d_row + seen, T{0});
        }
        multiply({seen, n.value_size, rows}, 1, p_in, true, dout.from(r), false, 1,
                 dv.from(block.key));
        multiply({rows, n.size, seen}, 1, d_in, false, keys, false, 0, dq.from(r));
        multiply({seen, n.size, rows}, 1, d_in, true, q.from(r), false, 1, dk.from(block.key));
      });
    }
  });
  return {std::move(d_query), std::move(d_key), std::move(d_value)};
}

}  // namespace

bool takes_rows(at::ScalarType type, const Tensor& query, const Tensor& key, const Tensor& value) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  for (const auto* t : {&query, &key, &value}) {
    // BLAS requires rows that do not overlap.
    if (t->scalar_type() != type || t->numel() == 0 || t->stride(3) != 1 ||
        t->stride(2) < t->size(3) || t->stride(2) > kMost || t->size(2) > kMost) {
      return false;
    }
  }
  return true;
}

std::tuple<Tensor, Tensor> attention_rows(const Tensor& query, const Tensor& key,
                                          const Tensor& value, const RowAttention& options) {
  return query.scalar_type() == at::kDouble ? forward<double>(query, key, value, options)
                                            : forward<float>(query, key, value, options);
}

std::tuple<Tensor, Tensor, Tensor> attention_rows_backward(const Tensor& grad, const Tensor& query,
                                                           const Tensor& key, const Tensor& value,
                                                           const Tensor& output,
                                                           const Tensor& logsumexp,
                                                           const RowAttention& options) {
  return query.scalar_type() == at::kDouble
             ? backward<double>(grad, query, key, value, output, logsumexp, options)
             : backward<float>(grad, query, key, value, output, logsumexp, options);
}

}  // namespace perigee::exec::kernels
