#include "exec/kernels/attention/attention_rows.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "exec/kernels/attention/attention_segments.h"
#include "exec/kernels/attention/head_groups.h"
#include "exec/kernels/attention/score_rows.h"
#include "exec/kernels/element.h"
#include "exec/kernels/gemm.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

constexpr int64_t kRows = 64;     // of a block
constexpr int64_t kPadding = 16;  // elements after a row of scores

#define PERIGEE_COPY_ROW(E)                                         \
  PERIGEE_SIMD void copy_row(const E* from, float* to, int64_t n) { \
    for (int64_t i = 0; i < n; ++i) to[i] = load(from, i);          \
  }                                                                 \
  PERIGEE_SIMD void copy_row(const float* from, E* to, int64_t n) { \
    for (int64_t i = 0; i < n; ++i) store(to, i, from[i]);          \
  }
PERIGEE_COPY_ROW(c10::BFloat16)
PERIGEE_COPY_ROW(c10::Half)
#undef PERIGEE_COPY_ROW

// The rows of heads, in the type that they are computed in: of float32 and float64 where they lie,
// of a low precision copied to and from `room`, of which each head takes a part.
template <class E>
class Heads {
 public:
  using T = Wide<E>;
  static constexpr bool kCopies = !std::is_same_v<T, E>;

  explicit Heads(T* room) : room_(room) {}

  // Returns the matrix of one batch element and head.
  Matrix<const T> read(const Tensor& t, int64_t b, int64_t h) {
    const E* from = t.const_data_ptr<E>() + b * t.stride(0) + h * t.stride(1);
    if constexpr (kCopies) {
      const auto to = take(t);
      for (int64_t i = 0; i < t.size(2); ++i) {
        copy_row(from + i * t.stride(2), to.from(i).data, t.size(3));
      }
      return {to.data, to.row};
    } else {
      return {from, t.stride(2)};
    }
  }
  // Returns the matrix to write one to; `store` completes it.
  Matrix<T> write(const Tensor& t, int64_t b, int64_t h) {
    if constexpr (kCopies) {
      return take(t);
    } else {
      return {t.mutable_data_ptr<E>() + b * t.stride(0) + h * t.stride(1), t.stride(2)};
    }
  }
  static void store(Matrix<T> from, const Tensor& t, int64_t b, int64_t h) {
    if constexpr (kCopies) {
      E* to = t.mutable_data_ptr<E>() + b * t.stride(0) + h * t.stride(1);
      for (int64_t i = 0; i < t.size(2); ++i) {
        copy_row(from.from(i).data, to + i * t.stride(2), t.size(3));
      }
    }
  }

 private:
  Matrix<T> take(const Tensor& t) {
    const Matrix<T> taken{room_, t.size(3)};
    room_ += t.size(2) * t.size(3);
    return taken;
  }

  T* room_;
};

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
  Blocks(const HeadSizes& n, const RowAttention& options) : causal_(options.causal) {
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

template <class E>
std::tuple<Tensor, Tensor> forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const RowAttention& options) {
  using T = Wide<E>;
  const HeadSizes n(query, key, value);
  const Blocks blocks(n, options);
  const auto scale = static_cast<T>(options.scale);
  constexpr T kLowest = -std::numeric_limits<T>::infinity();
  auto output = make_rows(query, {n.batch, n.queries, n.heads, n.value_size});
  Tensor logsumexp = at::empty({n.batch, n.heads, n.queries},
                               query.options().dtype(c10::CppTypeToScalarType<T>::value));
  T* lse = logsumexp.mutable_data_ptr<T>();
  const int64_t scores_size = kRows * n.keys;
  const int64_t copies = Heads<E>::kCopies ? (n.queries + n.keys) * (n.size + n.value_size) : 0;
  each_group<T>(n, scores_size + copies, query, [&](int64_t b, int64_t g, T* scratch) {
    Heads<E> of_group(scratch + scores_size);
    const auto k = of_group.read(key, b, g), v = of_group.read(value, b, g);
    for (int64_t h = g * n.repeats(); h < (g + 1) * n.repeats(); ++h) {
      auto heads = of_group;
      const auto q = heads.read(query, b, h);
      const auto out = heads.write(output, b, h);
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
          sums[i] = exponentials(row, own, top, row);
          lse_row[r + i] = top + std::log(sums[i]);
          std::fill(row + own, row + seen, T{0});
        }
        multiply({rows, n.value_size, seen}, 1, {scratch, seen}, false, v.from(block.key), false, 0,
                 out.from(r));
        for (int64_t i = 0; i < rows; ++i) {
          scale_row(out.from(r + i).data, n.value_size, sums[i] > 0 ? 1 / sums[i] : T{0});
        }
      });
      heads.store(out, output, b, h);
    }
  });
  return {std::move(output), std::move(logsumexp)};
}

template <class E>
std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad, const Tensor& query,
                                            const Tensor& key, const Tensor& value,
                                            const Tensor& output, const Tensor& logsumexp,
                                            const RowAttention& options) {
  using T = Wide<E>;
  const HeadSizes n(query, key, value);
  const Blocks blocks(n, options);
  const auto scale = static_cast<T>(options.scale);
  const auto saved = logsumexp.contiguous();
  const T* lse = saved.const_data_ptr<T>();
  auto d_query = make_rows(query, {n.batch, n.queries, n.heads, n.size});
  auto d_key = make_rows(key, {n.batch, n.keys, n.groups, n.size});
  auto d_value = make_rows(value, {n.batch, n.keys, n.groups, n.value_size});
  // Rows of scores that lie 4 KiB apart would share cache sets, where a product reads columns.
  const int64_t most = kRows * (n.keys + kPadding), scores_size = 2 * most;
  const int64_t copies = Heads<E>::kCopies ? 2 * (n.queries + n.keys) * (n.size + n.value_size) : 0;
  each_group<T>(n, scores_size + copies, query, [&](int64_t b, int64_t g, T* scratch) {
    Heads<E> of_group(scratch + scores_size);
    const auto k = of_group.read(key, b, g), v = of_group.read(value, b, g);
    const auto dk = of_group.write(d_key, b, g), dv = of_group.write(d_value, b, g);
    clear_rows(dk, n.keys, n.size);
    clear_rows(dv, n.keys, n.value_size);
    for (int64_t h = g * n.repeats(); h < (g + 1) * n.repeats(); ++h) {
      auto heads = of_group;
      const auto q = heads.read(query, b, h), dout = heads.read(grad, b, h),
                 out = heads.read(output, b, h);
      const auto dq = heads.write(d_query, b, h);
      const T* lse_row = lse + (b * n.heads + h) * n.queries;
      blocks.each(b, [&](const Block& block) {
        const int64_t r = block.row, rows = block.rows, seen = block.keys;
        if (seen == 0) return clear_rows(dq.from(r), rows, n.size);
        const Matrix<T> p{scratch, seen + kPadding}, d{scratch + most, seen + kPadding};
        const Matrix<const T> p_in{p.data, p.row}, d_in{d.data, d.row};
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
      heads.store(dq, d_query, b, h);
    }
    of_group.store(dk, d_key, b, g);
    of_group.store(dv, d_value, b, g);
  });
  return {std::move(d_query), std::move(d_key), std::move(d_value)};
}

}  // namespace

bool takes_rows(const Tensor& query, const Tensor& key, const Tensor& value) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  for (const auto* t : {&query, &key, &value}) {
    // BLAS requires rows that do not overlap.
    if (t->scalar_type() != query.scalar_type() || t->numel() == 0 || t->stride(3) != 1 ||
        t->stride(2) < t->size(3) || t->stride(2) > kMost || t->size(2) > kMost) {
      return false;
    }
  }
  return true;
}

std::tuple<Tensor, Tensor> attention_rows(const Tensor& query, const Tensor& key,
                                          const Tensor& value, const RowAttention& options) {
  std::tuple<Tensor, Tensor> made;
  dispatch_gradient(query.scalar_type(),
                    [&]<class E>() { made = forward<E>(query, key, value, options); });
  return made;
}

std::tuple<Tensor, Tensor, Tensor> attention_rows_backward(const Tensor& grad, const Tensor& query,
                                                           const Tensor& key, const Tensor& value,
                                                           const Tensor& output,
                                                           const Tensor& logsumexp,
                                                           const RowAttention& options) {
  std::tuple<Tensor, Tensor, Tensor> made;
  dispatch_gradient(query.scalar_type(), [&]<class E>() {
    made = backward<E>(grad, query, key, value, output, logsumexp, options);
  });
  return made;
}

}  // namespace perigee::exec::kernels
