// Attention by blocks of query rows, computed in float32 or float64; heads of a low precision are
// copied to float32 and back, one after another. The scores of a block are one matrix product over
// its keys: those up to the block under a causal mask, and those of its document where several lie
// in a sequence. No scores are kept for the backward pass. Faster than LibTorch's flash kernel on a
// CPU (tools/bench/RESULTS.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace perigee::exec::kernels {

struct RowAttention {
  bool causal = false;  // key j <= query i
  double scale = 1;
  // [b, s] and [b, t] int64, contiguous: a query sees keys with its own number. Undefined: all.
  at::Tensor documents = {}, key_documents = {};
};

// Returns whether the functions below accept these operands: of one type, with contiguous rows.
bool takes_rows(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value);

// query [b,h,s,d], key [b,g,t,d], value [b,g,t,e] -> output [b,h,s,e] stored as [b,s,h,e],
// logsumexp [b,h,s] in the type of the computation. A query that sees no key gets 0 and -inf.
// Allocations depend on shapes, types and the number of threads.
std::tuple<at::Tensor, at::Tensor> attention_rows(const at::Tensor& query, const at::Tensor& key,
                                                  const at::Tensor& value,
                                                  const RowAttention& options);

// -> d_query, d_key, d_value, each stored as [b, rows, heads, size]
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_rows_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& output, const at::Tensor& logsumexp, const RowAttention& options);

}  // namespace perigee::exec::kernels
