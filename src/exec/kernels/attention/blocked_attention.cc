#include "exec/kernels/attention/blocked_attention.h"

#include <ATen/ATen.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "exec/kernels/attention/factor_rows.h"
#include "exec/kernels/attention/head_groups.h"
#include "exec/kernels/attention/score_rows.h"
#include "exec/kernels/product/blocked_product.h"

namespace perigee::exec::kernels {
namespace {

using at::BFloat16;
using at::Tensor;

constexpr int64_t kQueryRows = 64;  // of a block
constexpr int64_t kPartKeys = 256;  // of a part of the keys, whose gradients are computed together
static_assert(kPartKeys % kQueryRows == 0);
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
MatrixRows<T> columns_from(MatrixRows<T> rows, int64_t c) {
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

// product [m,n] = left [m,k] right [k,n], or += where it adds. Each thread compiles a shape with its steps once.
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

// to: the matrix as a right factor, whose rows lie one after another: those of a head may be a page
// apart, which makes each product slower.
template <class E>
void pack_rows(MatrixRows<const E> from, MatrixSize size, MatrixRows<Word<E>> to) {
  if constexpr (kPairs<E>) {
    pair_rows(from, size, to);
  } else {
    for (int64_t r = 0; r < size.rows; ++r) std::copy_n(from.row(r), size.columns, to.row(r));
  }
}

// A block of probabilities as a left factor: rounded, in memory that is taken for them, or floats
// where the scores lie.
template <class E>
class LeftScores {
 public:
  LeftScores(Room& room, int64_t step) {
    if constexpr (kPairs<E>) rounded_ = room.elements<E>(kQueryRows, step);
  }
  MatrixRows<E> of(MatrixRows<float> scores) const {
    if constexpr (kPairs<E>) {
      return rounded_;
    } else {
      return scores;
    }
  }

 private:
  MatrixRows<E> rounded_{};
};

// Rows of results: floats in memory that is taken for them, which are then rounded, or floats where
// they shall lie.
template <class E>
class ResultRows {
 public:
  ResultRows(Room& room, int64_t rows, int64_t columns) : columns_(columns) {
    if constexpr (kPairs<E>) sums_ = room.floats(rows, columns);
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

// Returns how many of `count` keys, of which `first` is the first, a query sees.
int64_t seen_by(int64_t query, int64_t first, int64_t count, bool causal) {
  return causal ? std::min(count, query + 1 - first) : count;
}

// Calls f(first row, keys that a row of the block may see) for each block of queries that sees some
// of those keys. `first` is a multiple of kQueryRows.
template <class F>
void each_block(const HeadSizes& n, bool causal, int64_t first, int64_t count, F f) {
  for (int64_t r = causal ? first : 0; r < n.queries; r += kQueryRows) {
    f(r, seen_by(r + kQueryRows - 1, first, count, causal));
  }
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
  MatrixRows<Word<E>> values;
  MatrixRows<float> scores;
  LeftScores<E> p;
  ResultRows<E> results;

  ForwardScratch(Room& room, const HeadSizes& n)
      : keys(room.words<E>(n.size, key_step(n))),
        values(room.words<E>(n.keys, n.value_size)),
        scores(room.floats(kQueryRows, key_step(n))),
        p(room, n.keys + 2 * kRowPadding),
        results(room, kQueryRows, n.value_size) {}
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
    pack_rows(head_of<E>(value, b, g), {n.keys, n.value_size}, s.values);
    for (int64_t h = g * n.repeats(); h < (g + 1) * n.repeats(); ++h) {
      const auto q = head_of<E>(query, b, h);
      const auto out = result_head_of<E>(output, b, h);
      float* lse_row = lse + (b * n.heads + h) * n.queries;
      each_block(n, options.causal, 0, n.keys, [&](int64_t r, int64_t seen) {
        multiply<E>({kQueryRows, seen, n.size}, rows_from(q, r), reading(s.keys), false, s.scores);
        const auto p = s.p.of(s.scores);
        float sums[kQueryRows];
        for (int64_t i = 0; i < kQueryRows; ++i) {
          const int64_t own = seen_by(r + i, 0, seen, options.causal);
          float top;
          sums[i] = exponentials(s.scores.row(i), own, top, p.row(i), options.scale);
          lse_row[r + i] = top + std::log(sums[i]);
          std::fill(p.row(i) + own, p.row(i) + seen, E(0.0F));
        }
        const auto results = rows_from(out, r);
        multiply<E>({kQueryRows, n.value_size, seen}, reading(p), reading(s.values), false,
                    s.results.sums(results));
        for (int64_t i = 0; i < kQueryRows; ++i) s.results.finish_row(i, 1 / sums[i], results);
      });
    }
  });
  return {std::move(output), std::move(logsumexp)};
}

// Scores and gradients of probabilities of a block; `compute` makes them probabilities and gradients
// of scores, which are factors: pairs and rounded rows in memory of their own, or floats where
// they lie.
template <class E>
struct BlockGradients {
  MatrixRows<float> scores, d;
  MatrixRows<Word<E>> p_right, d_right;
  MatrixRows<E> d_left;

  BlockGradients(Room& room, int64_t part)
      : scores(room.floats(kQueryRows, part + kRowPadding)),
        d(room.floats(kQueryRows, part + kRowPadding)) {
    if constexpr (kPairs<E>) {
      p_right = room.words<E>(kQueryRows, part + kRowPadding);
      d_right = room.words<E>(kQueryRows, part + kRowPadding);
      d_left = room.elements<E>(kQueryRows, part + 2 * kRowPadding);
    } else {
      p_right = scores;
      d_right = d_left = d;
    }
  }

  // `own`: how many keys row i sees, of n; lse and dots: of the block's rows.
  template <class Own>
  void compute(int64_t n, float scale, Own own, const float* lse, const float* dots) const {
    const auto row = [&](int64_t i) {
      return ScoreRow{scores.row(i), d.row(i), own(i), lse[i], dots[i]};
    };
    if constexpr (kPairs<E>) {
      for (int64_t i = 0; i < kQueryRows; i += 2) {
        score_pairs(row(i), row(i + 1), n, scale,
                    {p_right.row(i / 2), d_right.row(i / 2), d_left.row(i), d_left.row(i + 1)});
      }
    } else {
      for (int64_t i = 0; i < kQueryRows; ++i) {
        const int64_t seen = own(i);
        probabilities(scores.row(i), seen, lse[i], scale);
        score_gradients(d.row(i), scores.row(i), seen, dots[i], scale);
        std::fill(scores.row(i) + seen, scores.row(i) + n, 0.0F);
        std::fill(d.row(i) + seen, d.row(i) + n, 0.0F);
      }
    }
  }
};

template <class E>
struct BackwardScratch {
  MatrixRows<Word<E>> keys, values, key_rows;  // of a part
  BlockGradients<E> block;                     // of queries and a part of the keys
  MatrixRows<float> dk, dv;                    // gradients of all keys and values, transposed
  // Of a head's queries.
  MatrixRows<E> q_columns, dout_columns;
  MatrixRows<float> dots;  // of rows of the output and its gradient
  ResultRows<E> dq;

  BackwardScratch(Room& room, const HeadSizes& n) : BackwardScratch(room, n, part_keys(n)) {}

  static int64_t part_keys(const HeadSizes& n) { return std::min(n.keys, kPartKeys); }

 private:
  BackwardScratch(Room& room, const HeadSizes& n, int64_t part)
      : keys(room.words<E>(n.size, part + kRowPadding)),
        values(room.words<E>(n.value_size, part + kRowPadding)),
        key_rows(room.words<E>(part, n.size)),
        block(room, part),
        dk(room.floats(n.size, key_step(n))),
        dv(room.floats(n.value_size, key_step(n))),
        q_columns(room.elements<E>(n.size, n.queries + 2 * kRowPadding)),
        dout_columns(room.elements<E>(n.value_size, n.queries + 2 * kRowPadding)),
        dots(room.floats(1, n.queries)),
        dq(room, n.queries, n.size) {}
};

// Gradients part by part of the keys, as in FlashAttention-2 (Dao 2023): keys and values of a part
// and their gradients stay in the cache, while each block of queries and its gradients pass once.
// Heads that share keys pack them again, which is little beside their products.
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
  const int64_t part_keys = Scratch::part_keys(n);
  const int64_t seen_keys = options.causal ? std::min(n.keys, n.queries) : n.keys;
  each_group_with<Scratch>(n, query, [&](int64_t b, int64_t g, const Scratch& s) {
    const auto group_keys = head_of<E>(key, b, g), group_values = head_of<E>(value, b, g);
    std::fill_n(s.dk.data, n.size * s.dk.step, 0.0F);
    std::fill_n(s.dv.data, n.value_size * s.dv.step, 0.0F);
    for (int64_t h = g * n.repeats(); h < (g + 1) * n.repeats(); ++h) {
      const auto q = head_of<E>(query, b, h), dout = head_of<E>(grad, b, h),
                 out = head_of<E>(output, b, h);
      const auto dq = result_head_of<E>(d_query, b, h);
      const auto dq_sums = s.dq.sums(dq);
      const float* lse_row = lse + (b * n.heads + h) * n.queries;
      transpose(q, {n.queries, n.size}, s.q_columns);
      transpose(dout, {n.queries, n.value_size}, s.dout_columns);
      for (int64_t i = 0; i < n.queries; ++i) {
        s.dots.data[i] = dot_product(dout.row(i), out.row(i), n.value_size);
      }
      for (int64_t first = 0; first < seen_keys; first += part_keys) {
        const int64_t count = std::min(part_keys, n.keys - first);
        const auto keys = rows_from(group_keys, first), values = rows_from(group_values, first);
        pack_columns(keys, {count, n.size}, s.keys);
        pack_columns(values, {count, n.value_size}, s.values);
        pack_rows(keys, {count, n.size}, s.key_rows);
        const auto dk = columns_from(s.dk, first), dv = columns_from(s.dv, first);
        each_block(n, options.causal, first, count, [&](int64_t r, int64_t seen) {
          multiply<E>({kQueryRows, seen, n.size}, rows_from(q, r), reading(s.keys), false,
                      s.block.scores);
          multiply<E>({kQueryRows, seen, n.value_size}, rows_from(dout, r), reading(s.values),
                      false, s.block.d);
          const auto own = [&](int64_t i) { return seen_by(r + i, first, seen, options.causal); };
          s.block.compute(seen, options.scale, own, lse_row + r, s.dots.data + r);
          multiply<E>({n.value_size, seen, kQueryRows}, reading(columns_from(s.dout_columns, r)),
                      reading(s.block.p_right), true, dv);
          multiply<E>({n.size, seen, kQueryRows}, reading(columns_from(s.q_columns, r)),
                      reading(s.block.d_right), true, dk);
          multiply<E>({kQueryRows, n.size, seen}, reading(s.block.d_left), reading(s.key_rows),
                      first > 0, rows_from(dq_sums, r));
        });
      }
      for (int64_t i = 0; i < n.queries; ++i) s.dq.finish_row(i, 1, dq);
    }
    transpose(reading(s.dk), {n.size, n.keys}, result_head_of<E>(d_key, b, g));
    transpose(reading(s.dv), {n.value_size, n.keys}, result_head_of<E>(d_value, b, g));
  });
  return {std::move(d_query), std::move(d_key), std::move(d_value)};
}

}  // namespace

bool takes_blocks(const Tensor& query, const Tensor& key, const Tensor& value) {
  const auto type = query.scalar_type();
  const bool served = type == at::kBFloat16 ? has_pair_microkernels() : has_blocks(type);
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
