// The choice between LibTorch's kernels for attention.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace perigee::cuda {

enum class AttentionPath : uint8_t { math, flash, efficient, cudnn };

struct AttentionCase {
  at::ScalarType type = at::kFloat;
  int64_t queries = 0, keys = 0;             // positions
  int64_t query_width = 0, value_width = 0;  // of a head
  bool causal = false, bias = false;
  bool documents = false;  // queries see keys of their own document only
  int capability = 0;      // the GPU's compute capability, 90 for 9.0
  // Results must be bit-equal from run to run: flash attention has a mode for it, which
  // exec::refuse_nondeterministic sets; the other backward passes sum in no fixed order.
  bool deterministic = false;
};

// Depends on shapes and types only, so that an op always takes the same path, and forward and
// backward agree.
AttentionPath attention_path(const AttentionCase& wanted);

// Returns t [batch, heads, positions, width] with contiguous rows that begin at multiples of 16
// bytes, as the fused kernels read them: t, or a copy with the strides of position_major.
at::Tensor aligned_rows(const at::Tensor& t);

// Returns t [batch, heads, positions, width] with strides of a contiguous [batch, positions, heads,
// width]. The efficient backward kernel of half types reads the output of attention with these
// strides, whatever strides it has.
at::Tensor position_major(const at::Tensor& t);

// Returns logsumexp [batch, heads, rows] of the efficient kernel with rows up to a multiple of a
// warp's. The forward kernel writes +inf there, which makes the probabilities of these rows 0.
at::Tensor padded_logsumexp(const at::Tensor& logsumexp);

}  // namespace perigee::cuda
