// Attention within documents: several documents lie in one sequence, and a token attends to those
// of its own. In a captured graph it is one op forward and one backward (graph/ops.h); outside of a
// capture it runs as ATen's attention with a mask.
#pragma once

#include <ATen/core/Tensor.h>

namespace perigee {

struct AttentionSettings {
  at::Tensor
      documents;    // [b, s] int64, the number of each token's document; undefined: one for all
  at::Tensor mask;  // as ATen's attn_mask; undefined: none
  double dropout = 0;
  bool causal = false;   // key j <= query i; not with a mask
  bool grouped = false;  // a key head for several query heads
};

// query [b, h, s, d], key and value [b, g, s, d] -> [b, h, s, d]. Without documents this is
// at::scaled_dot_product_attention. Throws Error for documents of another shape or type.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttentionSettings& settings);

}  // namespace perigee
