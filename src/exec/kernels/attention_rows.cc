#include "exec/kernels/attention_rows.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "exec/kernels/gemm.h"
#include "exec/kernels/lanes.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

constexpr int64_t kRows = 64;  // of a block

using In = Matrix<const float>;
using Out = Matrix<float>;

// Returns the matrix of one batch element and head.
In read(const Tensor& t, int64_t b, int64_t h) {
  return {t.const_data_ptr<float>() + b * t.stride(0) + h * t.stride(1), t.stride(2)};
}
Out write(const Tensor& t, int64_t b, int64_t h) {
  return {t.mutable_data_ptr<float>() + b * t.stride(0) + h * t.stride(1), t.stride(2)};
}

PERIGEE_INLINE int64_t lanes_left(int64_t i, int64_t n) {
  return n - i < kLanes ? n - i : int64_t{kLanes};
}
PERIGEE_INLINE float add_lanes(Floats v) {
  float sum = 0;
  for (int l = 0; l < kLanes; ++l) sum += v[l];
  return sum;
}

// x[k] = exp(x[k] - top) for k < n; returns their sum, and the largest in `top`.
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
template <class F>
void each_group(const Sizes& n, int64_t scratch_rows, const Tensor& like, F f) {
  const int64_t work = n.batch * n.groups;
  const int64_t parts = std::min<int64_t>(at::get_num_threads(), work);
  const auto scratch = at::empty({parts, scratch_rows, n.keys}, like.options());
  float* data = scratch.mutable_data_ptr<float>();
  at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      for (int64_t w = work * p / parts; w < work * (p + 1) / parts; ++w) {
        f(w / n.groups, w % n.groups, data + p * scratch_rows * n.keys);
      }
    }
  });
}

}  // namespace

bool takes_rows(const Tensor& query, const Tensor& key, const Tensor& value) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  for (const auto* t : {&query, &key, &value}) {
    // BLAS requires rows that do not overlap.
    if (t->scalar_type() != at::kFloat || t->numel() == 0 || t->stride(3) != 1 ||
        t->stride(2) < t->size(3) || t->stride(2) > kMost || t->size(2) > kMost) {
      return false;
    }
  }
  return true;
}

std::tuple<Tensor, Tensor> attention_rows(const Tensor& query, const Tensor& key,
                                          const Tensor& value, const RowAttention& options) {
  const Sizes n(query, key, value);
  const auto scale = static_cast<float>(options.scale);
  auto output = make_rows(query, {n.batch, n.queries, n.heads, n.value_size}, false);
  auto logsumexp = at::empty({n.batch, n.heads, n.queries}, query.options());
  float* lse = logsumexp.mutable_data_ptr<float>();
  const int64_t repeats = n.heads / n.groups;
  each_group(n, kRows, query, [&](int64_t b, int64_t g, float* scratch) {
    const In k = read(key, b, g), v = read(value, b, g);
    for (int64_t h = g * repeats; h < (g + 1) * repeats; ++h) {
      const In q = read(query, b, h);
      const Out out = write(output, b, h);
      float* lse_row = lse + (b * n.heads + h) * n.queries;
      for (int64_t r = 0; r < n.queries; r += kRows) {
        const int64_t rows = std::min(kRows, n.queries - r);
        const int64_t seen = options.causal ? std::min(n.keys, r + rows) : n.keys;
        const Out scores{scratch, seen};
        multiply({rows, seen, n.size}, scale, q.from(r), false, k, true, 0, scores);
        float sums[kRows];
        for (int64_t i = 0; i < rows; ++i) {
          float* row = scores.from(i).data;
          const int64_t own = options.causal ? std::min(seen, r + i + 1) : seen;
          float top;
          sums[i] = exponentials(row, own, top);
          lse_row[r + i] = top + std::log(sums[i]);
          std::fill(row + own, row + seen, 0.0f);
        }
        multiply({rows, n.value_size, seen}, 1, {scratch, seen}, false, v, false, 0, out.from(r));
        for (int64_t i = 0; i < rows; ++i) {
          scale_row(out.from(r + i).data, n.value_size, 1 / sums[i]);
        }
      }
    }
  });
  return {std::move(output), std::move(logsumexp)};
}

std::tuple<Tensor, Tensor, Tensor> attention_rows_backward(const Tensor& grad, const Tensor& query,
                                                           const Tensor& key, const Tensor& value,
                                                           const Tensor& output,
                                                           const Tensor& logsumexp,
                                                           const RowAttention& options) {
  const Sizes n(query, key, value);
  const auto scale = static_cast<float>(options.scale);
  const auto saved = logsumexp.contiguous();
  const float* lse = saved.const_data_ptr<float>();
  auto d_query = make_rows(query, {n.batch, n.queries, n.heads, n.size}, false);
  auto d_key = make_rows(key, {n.batch, n.keys, n.groups, n.size}, true);
  auto d_value = make_rows(value, {n.batch, n.keys, n.groups, n.value_size}, true);
  const int64_t repeats = n.heads / n.groups;
  each_group(n, 2 * kRows, query, [&](int64_t b, int64_t g, float* scratch) {
    const In k = read(key, b, g), v = read(value, b, g);
    const Out dk = write(d_key, b, g), dv = write(d_value, b, g);
    for (int64_t h = g * repeats; h < (g + 1) * repeats; ++h) {
      const In q = read(query, b, h), dout = read(grad, b, h), out = read(output, b, h);
      const Out dq = write(d_query, b, h);
      const float* lse_row = lse + (b * n.heads + h) * n.queries;
      for (int64_t r = 0; r < n.queries; r += kRows) {
        const int64_t rows = std::min(kRows, n.queries - r);
        const int64_t seen = options.causal ? std::min(n.keys, r + rows) : n.keys;
        const Out p{scratch, seen}, d{scratch + kRows * n.keys, seen};
        const In p_in{p.data, seen}, d_in{d.data, seen};
        multiply({rows, seen, n.size}, scale, q.from(r), false, k, true, 0, p);
        multiply({rows, seen, n.value_size}, 1, dout.from(r), false, v, true, 0, d);
        for (int64_t i = 0; i < rows; ++i) {
          float *p_row = p.from(i).data, *d_row = d.from(i).data;
          const int64_t own = options.causal ? std::min(seen, r + i + 1) : seen;
          probabilities(p_row, own, lse_row[r + i]);
          const float dot = dot_product(dout.from(r + i).data, out.from(r + i).data, n.value_size);
          score_gradients(d_row, p_row, own, dot, scale);
          std::fill(p_row + own, p_row + seen, 0.0f);
          std::fill(d_row + own, d_row + seen, 0.0f);
        }
        multiply({seen, n.value_size, rows}, 1, p_in, true, dout.from(r), false, 1, dv);
        multiply({rows, n.size, seen}, 1, d_in, false, k, false, 0, dq.from(r));
        multiply({seen, n.size, rows}, 1, d_in, true, q.from(r), false, 1, dk);
      }
    }
  });
  return {std::move(d_query), std::move(d_key), std::move(d_value)};
}

}  // namespace perigee::exec::kernels
