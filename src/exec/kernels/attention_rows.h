// float32 attention by blocks of query rows. The scores of a block are one matrix product over all
// keys; under a causal mask, keys after the block are left out. No scores are kept for the backward
// pass. Faster than LibTorch's flash kernel on a CPU (tools/bench/RESULTS.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace perigee::exec::kernels {

struct RowAttention {
  bool causal = false;  // key j <= query i
  double scale = 1;
};

// Returns whether the functions below accept these operands: float32 with contiguous rows.
bool takes_rows(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value);

// query [b,h,s,d], key [b,g,t,d], value [b,g,t,e] -> output [b,h,s,e] stored as [b,s,h,e],
// logsumexp [b,h,s]
std::tuple<at::Tensor, at::Tensor> attention_rows(const at::Tensor& query, const at::Tensor& key,
                                                  const at::Tensor& value,
                                                  const RowAttention& options);

// -> d_query, d_key, d_value, each stored as [b, rows, heads, size]
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_rows_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& output, const at::Tensor& logsumexp, const RowAttention& options);

}  // namespace perigee::exec::kernels
