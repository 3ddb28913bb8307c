#include <ATen/ATen.h>

#include <limits>

#include "exec/reference/ops.h"

namespace perigee::exec {
namespace {

using at::Tensor;

// Half precision is computed in float32.
Tensor wide(const Tensor& t) {
  return t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16 ? t.to(at::kFloat) : t;
}

// Returns keys or values repeated to one head per query head.
Tensor of_heads(const Tensor& t, int64_t heads) {
  return t.repeat_interleave(heads / t.size(1), 1);
}

}  // namespace

// Scores over all rows of the caches; those after a query's position are masked.
Kernel cached_attention(const Arguments& a) {
  return [query = a.operand("query"), key = a.operand("key"), value = a.operand("value"),
          positions = a.operand("positions"), slots = a.operand("slots"),
          key_cache = a.operand("key_cache"), value_cache = a.operand("value_cache"),
          scale = a.number("scale"), window = a.integer("window", 0)](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw&) {
    const auto at = in[positions];
    const auto last = in[key_cache].size(2) - 1;
    const auto rows = at::where(at < 0, at::full_like(at, last), at);
    const auto owners = in[slots].unsqueeze(1).expand_as(rows);
    const auto write = [&](Tensor cache, const Tensor& from) {
      cache.transpose(1, 2).index_put_({owners, rows}, from.transpose(1, 2));
      return wide(of_heads(cache.index_select(0, in[slots]), in[query].size(1)));
    };
    const auto k = write(in[key_cache], in[key]), v = write(in[value_cache], in[value]);
    const auto columns = at::arange(last + 1, at.options());
    const auto queries = at.unsqueeze(1).unsqueeze(3);  // [b, 1, s, 1]
    auto hidden = columns > queries;
    if (window > 0) hidden = hidden.logical_or(columns <= queries - window);
    const auto scores = (at::matmul(wide(in[query]), k.transpose(-2, -1)) * scale)
                            .masked_fill(hidden, -std::numeric_limits<double>::infinity());
    const auto result = at::matmul(scores.softmax(-1), v);
    out[0] = result.masked_fill(queries < 0, 0).to(in[query].scalar_type());
  };
}

}  // namespace perigee::exec
