#include "exec/kernels/attention/blocked_attention.h"

#include <ATen/ATen.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "exec/kernels/attention/factor_rows.h"
#include "exec/kernels/attention/head_groups.h"
#include "exec/kernels/attention/score_rows.h"
#include "exec/kernels/blocked_product.h"
#include "exec/kernels/product.h"

namespace perigee::exec::kernels {
namespace {

using at::BFloat16;
using at::Tensor;

constexpr int64_t kQueryRows = 64;  // of a block
// Words after a row: rows 4 KiB apart would share cache sets, where a product reads columns.
constexpr int64_t kRowPadding = 16;

template <class E>
MatrixRows<const E> head_of(const Tensor& t, int64_t b, int64_t h) {
  return {t.const_data_ptr<E>() + b * t.stride(0) + h * t.stride(1), t.stride(2)};
}

template <class E>
MatrixRows<E> result_head_of(const Tensor& t, int64_t b, int64_t h) {
  return {t.mutable_data_ptr<E>() + b * t.stride(0) + h * t.stride(1), t.stride(2)};
}

template <class T>
MatrixRows<const T> reading(MatrixRows<T> rows) {
  return {rows.data, rows.step};
}

template <class T>
MatrixRows<T> rows_from(MatrixRows<T> rows, int64_t r) {
  return {rows.row(r), rows.step};
}

template <class T>
MatrixRows<const T> columns_from(MatrixRows<T> rows, int64_t c) {
  return {rows.data + c, rows.step};
}

// Whether numbers are rounded to E, and pairs of them are the words of a right factor.
template <class E>
constexpr bool kPairs = std::is_same_v<E, BFloat16>;
template <class E>
using Word = std::conditional_t<kPairs<E>, uint32_t, float>;

struct BlockShape {
  int64_t m, n, k;
};

// product [m,n] = left [m,k] right [k,n], or += where it adds. Each shape is compiled once.
template <class E>
void multiply(BlockShape shape, MatrixRows<const E> left, MatrixRows<const Word<E>> right,
              bool adds, MatrixRows<float> product) {
  at::native::cpublas::brgemm(shape.m, shape.n, shape.k, left.step, right.step, product.step, adds,
                              left.data, reinterpret_cast<const E*>(right.data), product.data,
                              kPairs<E>);
}

// Takes parts of a thread's scratch, or only counts their floats where it has none.
class Room {
 public:
  explicit Room(float* begin = nullptr) : begin_(begin) {}
  MatrixRows<float> floats(int64_t rows, int64_t size) { return {take(rows * size), size}; }
  template <class E>
  MatrixRows<E> elements(int64_t rows, int64_t size) {
    return {reinterpret_cast<E*>(take(rows * size * sizeof(E) / sizeof(float))), size};
  }
  // A right factor [rows, columns].
  template <class E>
  MatrixRows<Word<E>> words(int64_t rows, int64_t columns) {
    return {reinterpret_cast<Word<E>*>(take(kPairs<E> ? rows / 2 * columns : rows * columns)),
            columns};
  }
  int64_t taken() const { return taken_; }

 private:
  float* take(int64_t count) {
    auto* part = begin_ == nullptr ? nullptr : begin_ + taken_;
    taken_ += count;
    return part;
  }
  float* begin_;
  int64_t taken_ = 0;
};

// Matrices that serve as right factors: pairs of their rows, in memory that is taken for them, or
// floats where they lie.
template <class E>
class RowFactor {
 public:
  RowFactor(Room& room, int64_t rows, int64_t columns) {
    if constexpr (kPairs<E>) pairs_ = room.words<E>(rows, columns);
  }
  template <class T>
  MatrixRows<const Word<E>> of(MatrixRows<const T> rows, MatrixSize size) const {
    if constexpr (kPairs<E>) {
      pair_rows(rows, size, pairs_);
      return reading(pairs_);
    } else {
      return rows;
    }
  }

 private:
  MatrixRows<Word<E>> pairs_{};
};

// A block of scores as a left factor: its rows rounded, in memory that is taken for them, or floats
// where they lie.
template <class E>
class ScoreFactor {
 public:
  ScoreFactor(Room& room, int64_t step) {
    if constexpr (kPairs<E>) rounded_ = room.elements<E>(kQueryRows, 2 * step);
  }
  // Is called for each row of the block before `of`.
  void add_row(const float* row, int64_t count, int64_t i) const {
    if constexpr (kPairs<E>) round_row(row, count, 1, rounded_.row(i));
  }
  MatrixRows<const E> of(MatrixRows<float> scores) const {
    if constexpr (kPairs<E>) {
      return reading(rounded_);
    } else {
      return reading(scores);
    }
  }

 private:
  MatrixRows<E> rounded_{};
};

// A block of results: floats in memory that is taken for them, which are then rounded, or floats
// where they shall lie.
template <class E>
class ResultBlock {
 public:
  ResultBlock(Room& room, int64_t columns) : columns_(columns) {
    if constexpr (kPairs<E>) sums_ = room.floats(kQueryRows, columns);
  }
  MatrixRows<float> sums(MatrixRows<E> result) const {
    if constexpr (kPairs<E>) {
      return sums_;
    } else {
      return result;
    }
  }
  // Multiplies row `i` by a factor.
  void finish_row(int64_t i, float factor, MatrixRows<E> result) const {
    if constexpr (kPairs<E>) {
      round_row(sums_.row(i), columns_, factor, result.row(i));
    } else if (factor != 1) {
      scale_row(result.row(i), columns_, factor);
    }
  }

 private:
  int64_t columns_;
  MatrixRows<float> sums_{};
};

// to [columns, rows]: the transposed matrix as a right factor.
template <class E>
void pack_columns(MatrixRows<const E> from, MatrixSize size, MatrixRows<Word<E>> to) {
  if constexpr (kPairs<E>) {
    pair_columns(from, size, to);
  } else {
    transpose(from, size, to);
  }
}

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

// Runs f(b, group, scratch) for every group of heads, each thread with a scratch of its own.
template <class Scratch, class F>
void each_group_with(const HeadSizes& n, const Tensor& like, F f) {
  Room counted;
  const Scratch none(counted, n);
  each_group<float>(n, counted.taken(), like, [&](int64_t b, int64_t g, float* memory) {
    Room room(memory);
    f(b, g, Scratch(room, n));
    at::native::cpublas::brgemm_release(like.scalar_type() == at::kBFloat16);
  });
}

int64_t key_step(const HeadSizes& n) { return n.keys + kRowPadding; }

template <class E>
struct ForwardScratch {
  MatrixRows<Word<E>> keys;
  RowFactor<E> values;
  MatrixRows<float> scores;
  ScoreFactor<E> p;
  ResultBlock<E> results;

  ForwardScratch(Room& room, const HeadSizes& n)
      : keys(room.words<E>(n.size, key_step(n))),
        values(room, n.keys, n.value_size),
        scores(room.floats(kQueryRows, key_step(n))),
        p(room, key_step(n)),
        results(room, n.value_size) {}
};

template <class E>
std::tuple<Tensor, Tensor> forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const BlockedAttention& options) {
  const HeadSizes n(query, key, value);
  auto output = make_rows(query, {n.batch, n.queries, n.heads, n.value_size});
  auto logsumexp = at::empty({n.batch, n.heads, n.queries}, query.options().dtype(at::kFloat));
  auto* lse = logsumexp.mutable_data_ptr<float>();
  using Scratch = ForwardScratch<E>;
  each_group_with<Scratch>(n, query, [&](int64_t b, int64_t g, const Scratch& s) {
    pack_columns(head_of<E>(key, b, g), {n.keys, n.size}, s.keys);
    const auto values = s.values.of(head_of<E>(value, b, g), {n.keys, n.value_size});
    for (int64_t h = g * n.repeats(); h < (g + 1) * n.repeats(); ++h) {
      const auto q = head_of<E>(query, b, h);
      const auto out = result_head_of<E>(output, b, h);
      float* lse_row = lse + (b * n.heads + h) * n.queries;
      each_block(n, options.causal, [&](int64_t r, int64_t seen) {
        multiply<E>({kQueryRows, seen, n.size}, rows_from(q, r), reading(s.keys), false, s.scores);
        float sums[kQueryRows];
        for (int64_t i = 0; i < kQueryRows; ++i) {
          const int64_t own = seen_by(r + i, seen, options.causal);
          float* row = s.scores.row(i);
          float top;
          sums[i] = exponentials(row, own, top, options.scale);
          lse_row[r + i] = top + std::log(sums[i]);
          std::fill(row + own, row + seen, 0.0F);
          s.p.add_row(row, seen, i);
        }
        const auto results = rows_from(out, r);
        multiply<E>({kQueryRows, n.value_size, seen}, s.p.of(s.scores), values, false,
                    s.results.sums(results));
        for (int64_t i = 0; i < kQueryRows; ++i) s.results.finish_row(i, 1 / sums[i], results);
      });
    }
  });
  return {std::move(output), std::move(logsumexp)};
}

template <class E>
struct BackwardScratch {
  MatrixRows<Word<E>> keys, values;
  RowFactor<E> key_rows;
  MatrixRows<float> dk, dv;  // gradients of all keys and values, transposed
  MatrixRows<E> q_columns, dout_columns;
  MatrixRows<float> p, d;
  RowFactor<E> p_rows, d_rows;
  ScoreFactor<E> d_left;
  ResultBlock<E> dq;

  BackwardScratch(Room& room, const HeadSizes& n)
      : keys(room.words<E>(n.size, key_step(n))),
        values(room.words<E>(n.value_size, key_step(n))),
        key_rows(room, n.keys, n.size),
        dk(room.floats(n.size, key_step(n))),
        dv(room.floats(n.value_size, key_step(n))),
        q_columns(room.elements<E>(n.size, n.queries + 2 * kRowPadding)),
        dout_columns(room.elements<E>(n.value_size, n.queries + 2 * kRowPadding)),
        p(room.floats(kQueryRows, key_step(n))),
        d(room.floats(kQueryRows, key_step(n))),
        p_rows(room, kQueryRows, key_step(n)),
        d_rows(room, kQueryRows, key_step(n)),
        d_left(room, key_step(n)),
        dq(room, n.size) {}
};

template <class E>
std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad, const Tensor& query,
                                            const Tensor& key, const Tensor& value,
                                            const Tensor& output, const Tensor& logsumexp,
                                            const BlockedAttention& options) {
  const HeadSizes n(query, key, value);
  const auto saved = logsumexp.contiguous();
  const auto* lse = saved.const_data_ptr<float>();
  auto d_query = make_rows(query, {n.batch, n.queries, n.heads, n.size});
  auto d_key = make_rows(key, {n.batch, n.keys, n.groups, n.size});
  auto d_value = make_rows(value, {n.batch, n.keys, n.groups, n.value_size});
  using Scratch = BackwardScratch<E>;
  each_group_with<Scratch>(n, query, [&](int64_t b, int64_t g, const Scratch& s) {
    const auto key_rows = head_of<E>(key, b, g);
    pack_columns(key_rows, {n.keys, n.size}, s.keys);
    pack_columns(head_of<E>(value, b, g), {n.keys, n.value_size}, s.values);
    const auto keys = s.key_rows.of(key_rows, {n.keys, n.size});
    std::fill_n(s.dk.data, n.size * s.dk.step, 0.0F);
    std::fill_n(s.dv.data, n.value_size * s.dv.step, 0.0F);
    for (int64_t h = g * n.repeats(); h < (g + 1) * n.repeats(); ++h) {
      const auto q = head_of<E>(query, b, h), dout = head_of<E>(grad, b, h),
                 out = head_of<E>(output, b, h);
      const auto dq = result_head_of<E>(d_query, b, h);
      const float* lse_row = lse + (b * n.heads + h) * n.queries;
      transpose(q, {n.queries, n.size}, s.q_columns);
      transpose(dout, {n.queries, n.value_size}, s.dout_columns);
      each_block(n, options.causal, [&](int64_t r, int64_t seen) {
        multiply<E>({kQueryRows, seen, n.size}, rows_from(q, r), reading(s.keys), false, s.p);
        multiply<E>({kQueryRows, seen, n.value_size}, rows_from(dout, r), reading(s.values), false,
                    s.d);
        for (int64_t i = 0; i < kQueryRows; ++i) {
          const int64_t own = seen_by(r + i, seen, options.causal);
          float *p_row = s.p.row(i), *d_row = s.d.row(i);
          probabilities(p_row, own, lse_row[r + i], options.scale);
          const float dot = dot_product(dout.row(r + i), out.row(r + i), n.value_size);
          score_gradients(d_row, p_row, own, dot, options.scale);
          std::fill(p_row + own, p_row + seen, 0.0F);
          std::fill(d_row + own, d_row + seen, 0.0F);
          s.d_left.add_row(d_row, seen, i);
        }
        const MatrixSize size{kQueryRows, seen};
        multiply<E>({n.value_size, seen, kQueryRows}, columns_from(s.dout_columns, r),
                    s.p_rows.of(reading(s.p), size), true, s.dv);
        multiply<E>({n.size, seen, kQueryRows}, columns_from(s.q_columns, r),
                    s.d_rows.of(reading(s.d), size), true, s.dk);
        const auto results = rows_from(dq, r);
        multiply<E>({kQueryRows, n.size, seen}, s.d_left.of(s.d), keys, false, s.dq.sums(results));
        for (int64_t i = 0; i < kQueryRows; ++i) s.dq.finish_row(i, 1, results);
      });
    }
    transpose(reading(s.dk), {n.size, n.keys}, result_head_of<E>(d_key, b, g));
    transpose(reading(s.dv), {n.value_size, n.keys}, result_head_of<E>(d_value, b, g));
  });
  return {std::move(d_query), std::move(d_key), std::move(d_value)};
}

}  // namespace

bool takes_blocks(const Tensor& query, const Tensor& key, const Tensor& value) {
  const auto type = query.scalar_type();
  const bool served = type == at::kBFloat16
                          ? has_pair_microkernels()
                          : prefers_blocks(type, kQueryRows, kQueryRows, kQueryRows);
  if (!served) return false;
  for (const auto* t : {&query, &key, &value}) {
    if (t->scalar_type() != type || t->numel() == 0 || t->stride(3) != 1 ||
        t->stride(2) < t->size(3) || t->size(2) % kQueryRows != 0 || t->size(3) % 16 != 0) {
      return false;
    }
  }
  return true;
}

std::tuple<Tensor, Tensor> blocked_attention(const Tensor& query, const Tensor& key,
                                             const Tensor& value, const BlockedAttention& options) {
  return query.scalar_type() == at::kFloat ? forward<float>(query, key, value, options)
                                           : forward<BFloat16>(query, key, value, options);
}

std::tuple<Tensor, Tensor, Tensor> blocked_attention_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& output, const Tensor& logsumexp, const BlockedAttention& options) {
  const auto run = [&]<class E>(E) {
    return backward<E>(grad, query, key, value, output, logsumexp, options);
  };
  return query.scalar_type() == at::kFloat ? run(float{}) : run(BFloat16{});
}

}  // namespace perigee::exec::kernels
