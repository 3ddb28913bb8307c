// Attention of new tokens to a cache of keys and values, one head of one token at a time, in blocks
// of keys with a running maximum: no scores of a whole row are stored.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "exec/kernels/element.h"
#include "exec/kernels/kernels.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

constexpr int64_t kBlock = 32;     // keys
constexpr int64_t kLargest = 512;  // elements of a head

// The keys that one query sees: `count` rows, one after the other.
template <class T>
struct Seen {
  const T *keys, *values;
  int64_t count;
  int64_t key_size, value_size;
};

template <class T>
PERIGEE_INLINE void attend(const T* query, const Seen<T>& seen, Wide<T> scale, T* output) {
  using W = Wide<T>;
  W sums[kLargest] = {};
  W scores[kBlock];
  W most = -INFINITY, total = 0;
  for (int64_t first = 0; first < seen.count; first += kBlock) {
    const int64_t count = seen.count - first < kBlock ? seen.count - first : kBlock;
    W block_most = most;
    for (int64_t j = 0; j < count; ++j) {
      const T* key = seen.keys + (first + j) * seen.key_size;
      scores[j] = scale * lane_sum<W>(seen.key_size, [&](int64_t i) PERIGEE_LAMBDA {
                    return load(query, i) * load(key, i);
                  });
      block_most = scores[j] > block_most ? scores[j] : block_most;
    }
    const W kept = std::exp(most - block_most);
    total *= kept;
    for (int64_t i = 0; i < seen.value_size; ++i) sums[i] *= kept;
    for (int64_t j = 0; j < count; ++j) {
      const T* value = seen.values + (first + j) * seen.value_size;
      const W weight = std::exp(scores[j] - block_most);
      total += weight;
      for (int64_t i = 0; i < seen.value_size; ++i) sums[i] += weight * load(value, i);
    }
    most = block_most;
  }
  for (int64_t i = 0; i < seen.value_size; ++i) store(output, i, sums[i] / total);
}

#define PERIGEE_ATTEND(T)                                                                      \
  PERIGEE_SIMD void attend_row(const T* query, const Seen<T>& seen, double scale, T* output) { \
    attend<T>(query, seen, static_cast<Wide<T>>(scale), output);                               \
  }
PERIGEE_ATTEND(float)
PERIGEE_ATTEND(double)
PERIGEE_ATTEND(c10::BFloat16)
#undef PERIGEE_ATTEND

struct CachedAttention {
  int query, key, value, positions, slots, key_cache, value_cache;
  double scale;
  int64_t window;

  explicit CachedAttention(const Arguments& a)
      : query(a.operand("query")),
        key(a.operand("key")),
        value(a.operand("value")),
        positions(a.operand("positions")),
        slots(a.operand("slots")),
        key_cache(a.operand("key_cache")),
        value_cache(a.operand("value_cache")),
        scale(a.number("scale")),
        window(a.integer("window", 0)) {}

  // Copies the rows [b,g,s,d] of tokens to their places in the cache [n,g,t,d].
  template <class T>
  static void write(const Tensor& rows, const int64_t* positions, const int64_t* slots,
                    const Tensor& cache) {
    const int64_t tokens = rows.size(2), size = rows.size(3);
    for (int64_t b = 0; b < rows.size(0); ++b) {
      for (int64_t g = 0; g < rows.size(1); ++g) {
        const T* from = rows.const_data_ptr<T>() + b * rows.stride(0) + g * rows.stride(1);
        T* to = cache.mutable_data_ptr<T>() + slots[b] * cache.stride(0) + g * cache.stride(1);
        for (int64_t s = 0; s < tokens; ++s) {
          const auto at = positions[b * tokens + s];
          if (at >= 0) std::copy_n(from + s * rows.stride(2), size, to + at * size);
        }
      }
    }
  }

  template <class T>
  void run(std::span<const Tensor> in, const Tensor& q, const Tensor& out) const {
    const auto at = in[positions].contiguous(), owner = in[slots].contiguous();
    const auto* at_data = at.const_data_ptr<int64_t>();
    const auto* slot = owner.const_data_ptr<int64_t>();
    const auto &keys = in[key_cache], &values = in[value_cache];
    const auto rows = [](const Tensor& t) { return t.stride(3) == 1 ? t : t.contiguous(); };
    const auto last = keys.size(2) - 1;
    for (int64_t i = 0; i < at.numel(); ++i) {
      if (at_data[i] < -1 || at_data[i] >= last) {
        fail("exec", "cached attention has room for the positions 0 to {}, but got {}", last - 1,
             at_data[i]);
      }
    }
    write<T>(rows(in[key]), at_data, slot, keys);
    write<T>(rows(in[value]), at_data, slot, values);
    const int64_t heads = q.size(1), tokens = q.size(2), shared = heads / keys.size(1);
    const Seen<T> whole = {keys.const_data_ptr<T>(), values.const_data_ptr<T>(), 0, q.size(3),
                           values.size(3)};
    // Tokens of one head one after the other, since they see the same keys.
    at::parallel_for(0, q.size(0) * heads * tokens, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const auto s = row % tokens, h = row / tokens % heads, b = row / tokens / heads;
        auto* to = out.mutable_data_ptr<T>() + b * out.stride(0) + h * out.stride(1) +
                   s * out.stride(2);
        const auto position = at_data[b * tokens + s];
        if (position < 0) {
          std::fill_n(to, whole.value_size, T(0));
          continue;
        }
        const auto first = window > 0 ? std::max<int64_t>(0, position + 1 - window) : 0;
        auto seen = whole;
        seen.keys += slot[b] * keys.stride(0) + h / shared * keys.stride(1) + first * seen.key_size;
        seen.values += slot[b] * values.stride(0) + h / shared * values.stride(1) +
                       first * seen.value_size;
        seen.count = position + 1 - first;
        attend_row(q.const_data_ptr<T>() + b * q.stride(0) + h * q.stride(1) + s * q.stride(2),
                   seen, scale, to);
      }
    });
  }
};

}  // namespace

Kernel cached_attention(const Arguments& a) {
  if (a.type().shape[3] > kLargest) return {};
  return [op = CachedAttention(a)](std::span<const Tensor> in, std::span<Tensor> out, const Draw&) {
    const auto q = in[op.query].stride(3) == 1 ? in[op.query] : in[op.query].contiguous();
    // Stored as [b,s,h,e], which the projection after it reads.
    out[0] = at::empty({q.size(0), q.size(2), q.size(1), in[op.value].size(3)}, q.options())
                 .transpose(1, 2);
    if (!dispatch_element(q.scalar_type(), [&]<class T>() { op.run<T>(in, q, out[0]); })) {
      fail("exec", "cached attention takes float32, float64 and bfloat16, but got {}",
           c10::toString(q.scalar_type()));
    }
  };
}

}  // namespace perigee::exec::kernels
