// Attention of bfloat16 by the CPU's bfloat16 instructions, by blocks of 64 query rows. The
// instructions multiply pairs of bfloat16 without rounding and add up in float32. Probabilities and
// gradients of scores are rounded to bfloat16 before they are multiplied, as in FlashAttention (Dao
// et al. 2022) and LibTorch's kernel. Faster than attention by float32 rows (attention_rows.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace perigee::exec::kernels {

// Returns whether the functions below serve these operands: bfloat16 with contiguous rows, numbers
// of queries and keys that are multiples of 64, sizes of heads that are multiples of 16, on a CPU
// with the instructions. Depends on shapes, strides, types and the CPU only.
bool takes_pairs(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value);

struct PairedAttention {
  bool causal = false;  // key j <= query i
  float scale = 1;
};

// query [b,h,s,d], key [b,g,t,d], value [b,g,t,e] -> output [b,h,s,e] stored as [b,s,h,e],
// logsumexp [b,h,s] float32. Allocations depend on shapes only.
std::tuple<at::Tensor, at::Tensor> paired_attention(const at::Tensor& query, const at::Tensor& key,
                                                    const at::Tensor& value,
                                                    const PairedAttention& options);

// grad and output as the output above, with contiguous rows, logsumexp [b,h,s] -> d_query, d_key,
// d_value, each stored as [b, rows, heads, size].
std::tuple<at::Tensor, at::Tensor, at::Tensor> paired_attention_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& output, const at::Tensor& logsumexp, const PairedAttention& options);

}  // namespace perigee::exec::kernels
