// Attention of float32 by blocks of query rows: the scores of a block are made whole, so that every
// product is one large matrix product, and under a causal mask keys behind the block are left out.
// Faster than LibTorch's flash kernel on a CPU (tools/bench/RESULTS.md); keeps no scores.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace perigee::exec::kernels {

struct RowAttention {
  bool causal = false;  // key j <= query i
  double scale = 1;
};

// Returns whether the functions below take these operands: float32, the elements of a row
// side by side.
bool takes_rows(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value);

// query [b,h,s,d], key [b,g,t,d], value [b,g,t,e] -> output [b,h,s,e] lying as [b,s,h,e],
// logsumexp [b,h,s]
std::tuple<at::Tensor, at::Tensor> attention_rows(const at::Tensor& query, const at::Tensor& key,
                                                  const at::Tensor& value,
                                                  const RowAttention& options);

// -> d_query, d_key, d_value, each lying as [b, rows, heads, size]
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_rows_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& output, const at::Tensor& logsumexp, const RowAttention& options);

}  // namespace perigee::exec::kernels
