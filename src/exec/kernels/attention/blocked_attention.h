// Attention of bfloat16 and float32 by the microkernels of LibTorch's oneDNN, by blocks of 64 query
// rows; its gradients also by parts of 256 keys. Microkernels of bfloat16 multiply pairs of numbers
// without rounding and add up in float32; probabilities and gradients of scores are rounded to
// bfloat16 before they are multiplied, as in FlashAttention (Dao et al. 2022) and LibTorch's kernel.
// Faster than attention_rows.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace perigee::exec::kernels {

// Returns whether the functions below serve these operands: of one type, with contiguous rows,
// numbers of queries and keys that are multiples of 64 and sizes of heads that are multiples of 16;
// where LibTorch has microkernels for this CPU (blocked_product.h): of float32 for AVX-512, of
// bfloat16 for its AVX-512 instructions. Depends on shapes, strides, types and the CPU only.
bool takes_blocks(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value);

struct BlockedAttention {
  bool causal = false;  // key j <= query i
  float scale = 1;
};

// query [b,h,s,d], key [b,g,t,d], value [b,g,t,e] -> output [b,h,s,e] stored as [b,s,h,e],
// logsumexp [b,h,s] float32. Allocations depend on shapes, types and the number of threads.
std::tuple<at::Tensor, at::Tensor> blocked_attention(const at::Tensor& query, const at::Tensor& key,
                                                     const at::Tensor& value,
                                                     const BlockedAttention& options);

// grad and output as the output above, with contiguous rows, logsumexp [b,h,s] -> d_query, d_key,
// d_value, each stored as [b, rows, heads, size].
std::tuple<at::Tensor, at::Tensor, at::Tensor> blocked_attention_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& output, const at::Tensor& logsumexp, const BlockedAttention& options);

}  // namespace perigee::exec::kernels
