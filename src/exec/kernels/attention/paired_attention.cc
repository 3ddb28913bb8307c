#include "exec/kernels/attention/paired_attention.h"

#include <ATen/ATen.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <cmath>

#include "exec/kernels/attention/head_groups.h"
#include "exec/kernels/attention/paired_rows.h"
#include "exec/kernels/attention/score_rows.h"

namespace perigee::exec::kernels {
namespace {

using at::BFloat16;
using at::Tensor;

constexpr int64_t kQueryRows = 64;  // of a block
// Words after a row: rows 4 KiB apart would share cache sets, where a product reads columns.
constexpr int64_t kRowPadding = 16;

bool has_instructions() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512bf16") > 0;
  return has;
#else
  return false;
#endif
}

MatrixRows<const BFloat16> head_of(const Tensor& t, int64_t b, int64_t h) {
  return {t.const_data_ptr<BFloat16>() + b * t.stride(0) + h * t.stride(1), t.stride(2)};
}

MatrixRows<BFloat16> result_head_of(const Tensor& t, int64_t b, int64_t h) {
  return {t.mutable_data_ptr<BFloat16>() + b * t.stride(0) + h * t.stride(1), t.stride(2)};
}

template <class T>
MatrixRows<const T> reading(MatrixRows<T> rows) {
  return {rows.data, rows.step};
}

struct PairedShape {
  int64_t m, n, k;
};

// product [m,n] = left [m,k] right [k,n], whose rows are paired, or += where it adds. Each shape is
// compiled once.
void multiply_pairs(PairedShape shape, MatrixRows<const BFloat16> left,
                    MatrixRows<const uint32_t> right, bool adds, MatrixRows<float> product) {
  at::native::cpublas::brgemm(shape.m, shape.n, shape.k, left.step, right.step, product.step, adds,
                              left.data, reinterpret_cast<const BFloat16*>(right.data),
                              product.data);
}

// Takes parts of a thread's scratch, in floats.
class Room {
 public:
  explicit Room(float* begin) : next_(begin) {}
  MatrixRows<float> floats(int64_t rows, int64_t size) { return {take(rows * size), size}; }
  MatrixRows<BFloat16> halves(int64_t rows, int64_t size) {
    return {reinterpret_cast<BFloat16*>(take(rows * size / 2)), size};
  }
  MatrixRows<uint32_t> pairs(int64_t rows, int64_t columns) {
    return {reinterpret_cast<uint32_t*>(take(rows / 2 * columns)), columns};
  }

 private:
  float* take(int64_t count) {
    auto* begin = next_;
    next_ += count;
    return begin;
  }
  float* next_;
};

// Calls f(first row, keys that a row of the block may see) for each block of queries.
template <class F>
void each_block(const HeadSizes& n, bool causal, F f) {
  for (int64_t r = 0; r < n.queries; r += kQueryRows) {
    f(r, causal ? std::min(n.keys, r + kQueryRows) : n.keys);
  }
}

// Returns the number of leading keys that a query sees.
int64_t seen_by(int64_t query, int64_t keys, bool causal) {
  return causal ? std::min(keys, query + 1) : keys;
}

}  // namespace

bool takes_pairs(const Tensor& query, const Tensor& key, const Tensor& value) {
  if (!has_instructions()) return false;
  for (const auto* t : {&query, &key, &value}) {
    if (t->scalar_type() != at::kBFloat16 || t->numel() == 0 || t->stride(3) != 1 ||
        t->stride(2) < t->size(3) || t->size(2) % kQueryRows != 0 || t->size(3) % 16 != 0) {
      return false;
    }
  }
  return true;
}

std::tuple<Tensor, Tensor> paired_attention(const Tensor& query, const Tensor& key,
                                            const Tensor& value, const PairedAttention& options) {
  const HeadSizes n(query, key, value);
  const int64_t step = n.keys + kRowPadding;
  auto output = make_rows(query, {n.batch, n.queries, n.heads, n.value_size});
  auto logsumexp = at::empty({n.batch, n.heads, n.queries}, query.options().dtype(at::kFloat));
  auto* lse = logsumexp.mutable_data_ptr<float>();
  const int64_t each = n.size * step / 2 + n.keys * n.value_size / 2 + 2 * kQueryRows * step +
                       kQueryRows * n.value_size;
  each_group<float>(n, each, query, [&](int64_t b, int64_t g, float* scratch) {
    Room room(scratch);
    const auto keys = room.pairs(n.size, step), values = room.pairs(n.keys, n.value_size);
    const auto scores = room.floats(kQueryRows, step);
    const auto p = room.halves(kQueryRows, 2 * step);
    const auto block = room.floats(kQueryRows, n.value_size);
    pair_columns(head_of(key, b, g), {n.keys, n.size}, keys);
    pair_rows(head_of(value, b, g), {n.keys, n.value_size}, values);
    for (int64_t h = g * n.repeats(); h < (g + 1) * n.repeats(); ++h) {
      const auto q = head_of(query, b, h);
      const auto out = result_head_of(output, b, h);
      float* lse_row = lse + (b * n.heads + h) * n.queries;
      each_block(n, options.causal, [&](int64_t r, int64_t seen) {
        multiply_pairs({kQueryRows, seen, n.size}, {q.row(r), q.step}, reading(keys), false,
                       scores);
        float sums[kQueryRows];
        for (int64_t i = 0; i < kQueryRows; ++i) {
          const int64_t own = seen_by(r + i, seen, options.causal);
          float* row = scores.row(i);
          scale_row(row, own, options.scale);
          float top;
          sums[i] = exponentials(row, own, top);
          lse_row[r + i] = top + std::log(sums[i]);
          round_row(row, own, 1, p.row(i));
          std::fill(p.row(i) + own, p.row(i) + seen, BFloat16(0));
        }
        multiply_pairs({kQueryRows, n.value_size, seen}, reading(p), reading(values), false, block);
        for (int64_t i = 0; i < kQueryRows; ++i) {
          round_row(block.row(i), n.value_size, 1 / sums[i], out.row(r + i));
        }
      });
    }
    at::native::cpublas::brgemm_release();
  });
  return {std::move(output), std::move(logsumexp)};
}

std::tuple<Tensor, Tensor, Tensor> paired_attention_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& output, const Tensor& logsumexp, const PairedAttention& options) {
  const HeadSizes n(query, key, value);
  const int64_t step = n.keys + kRowPadding, sizes = n.size + n.value_size;
  const auto saved = logsumexp.contiguous();
  const auto* lse = saved.const_data_ptr<float>();
  auto d_query = make_rows(query, {n.batch, n.queries, n.heads, n.size});
  auto d_key = make_rows(key, {n.batch, n.keys, n.groups, n.size});
  auto d_value = make_rows(value, {n.batch, n.keys, n.groups, n.value_size});
  const int64_t q_step = n.queries + 2 * kRowPadding;
  const int64_t each = sizes * step / 2 + n.keys * n.size / 2 + sizes * step + sizes * q_step / 2 +
                       4 * kQueryRows * step + kQueryRows * n.size;
  each_group<float>(n, each, query, [&](int64_t b, int64_t g, float* scratch) {
    Room room(scratch);
    const auto keys = room.pairs(n.size, step), values = room.pairs(n.value_size, step);
    const auto key_rows = room.pairs(n.keys, n.size);
    // Gradients of all keys and values, transposed.
    const auto dk = room.floats(n.size, step), dv = room.floats(n.value_size, step);
    const auto q_columns = room.halves(n.size, q_step);
    const auto dout_columns = room.halves(n.value_size, q_step);
    const auto p = room.floats(kQueryRows, step), d = room.floats(kQueryRows, step);
    const auto d_rows = room.halves(kQueryRows, 2 * step);
    const auto p_pairs = room.pairs(kQueryRows, step), d_pairs = room.pairs(kQueryRows, step);
    const auto dq_block = room.floats(kQueryRows, n.size);
    pair_columns(head_of(key, b, g), {n.keys, n.size}, keys);
    pair_columns(head_of(value, b, g), {n.keys, n.value_size}, values);
    pair_rows(head_of(key, b, g), {n.keys, n.size}, key_rows);
    std::fill_n(dk.data, sizes * step, 0.0F);
    for (int64_t h = g * n.repeats(); h < (g + 1) * n.repeats(); ++h) {
      const auto q = head_of(query, b, h), dout = head_of(grad, b, h), out = head_of(output, b, h);
      const auto dq = result_head_of(d_query, b, h);
      const float* lse_row = lse + (b * n.heads + h) * n.queries;
      transpose(q, {n.queries, n.size}, q_columns);
      transpose(dout, {n.queries, n.value_size}, dout_columns);
      each_block(n, options.causal, [&](int64_t r, int64_t seen) {
        multiply_pairs({kQueryRows, seen, n.size}, {q.row(r), q.step}, reading(keys), false, p);
        multiply_pairs({kQueryRows, seen, n.value_size}, {dout.row(r), dout.step}, reading(values),
                       false, d);
        for (int64_t i = 0; i < kQueryRows; ++i) {
          const int64_t own = seen_by(r + i, seen, options.causal);
          float *p_row = p.row(i), *d_row = d.row(i);
          scale_row(p_row, own, options.scale);
          probabilities(p_row, own, lse_row[r + i]);
          const float dot = dot_product(dout.row(r + i), out.row(r + i), n.value_size);
          score_gradients(d_row, p_row, own, dot, options.scale);
          std::fill(p_row + own, p_row + seen, 0.0F);
          std::fill(d_row + own, d_row + seen, 0.0F);
          round_row(d_row, seen, 1, d_rows.row(i));
        }
        pair_rows(reading(p), {kQueryRows, seen}, p_pairs);
        pair_rows(reading(d), {kQueryRows, seen}, d_pairs);
        multiply_pairs({n.value_size, seen, kQueryRows}, {dout_columns.data + r, q_step},
                       reading(p_pairs), true, dv);
        multiply_pairs({n.size, seen, kQueryRows}, {q_columns.data + r, q_step}, reading(d_pairs),
                       true, dk);
        multiply_pairs({kQueryRows, n.size, seen}, reading(d_rows), reading(key_rows), false,
                       dq_block);
        for (int64_t i = 0; i < kQueryRows; ++i) {
          round_row(dq_block.row(i), n.size, 1, dq.row(r + i));
        }
      });
    }
    round_transposed(reading(dk), {n.size, n.keys}, result_head_of(d_key, b, g));
    round_transposed(reading(dv), {n.value_size, n.keys}, result_head_of(d_value, b, g));
    at::native::cpublas::brgemm_release();
  });
  return {std::move(d_query), std::move(d_key), std::move(d_value)};
}

}  // namespace perigee::exec::kernels
