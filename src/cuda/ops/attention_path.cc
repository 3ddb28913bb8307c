#include "cuda/ops/attention_path.h"

#include <ATen/ATen.h>

#include <limits>

namespace perigee::cuda {

AttentionPath attention_path(const AttentionCase& c) {
  if (c.bias || c.documents || c.queries == 0 || c.keys == 0) return AttentionPath::math;
  if (c.query_width != c.value_width || c.query_width == 0 || c.query_width % 8 != 0) {
    return AttentionPath::math;
  }
  const bool half = c.type == at::kBFloat16 || c.type == at::kHalf;
  // On an H100, cuDNN's kernels take 0.6 times as long as flash attention's (heads of 64 elements,
  // 1,024 positions, causal).
  constexpr int kHopper = 90, kWidest = 128, kFewest = 128;
  if (half && !c.deterministic && c.capability >= kHopper && c.query_width <= kWidest &&
      c.queries == c.keys && c.queries >= kFewest) {
    return AttentionPath::cudnn;
  }
  // For unequal lengths, flash attention aligns the causal mask at the end of the keys, not
  // the start.
  // Its gradients of these widths need the shared memory of an A100 or H100.
  const bool wide = c.query_width > 192 && c.query_width <= 224;
  const bool serves = !wide || c.capability == 80 || c.capability == kHopper;
  if (half && serves && c.query_width <= 256 && (!c.causal || c.queries == c.keys)) {
    return AttentionPath::flash;
  }
  if (c.deterministic) return AttentionPath::math;
  return half || c.type == at::kFloat ? AttentionPath::efficient : AttentionPath::math;
}

at::Tensor aligned_rows(const at::Tensor& t) {
  constexpr int64_t kPiece = 16;  // bytes
  const auto element = static_cast<int64_t>(t.element_size());
  bool aligned = t.stride(3) == 1 && reinterpret_cast<uintptr_t>(t.const_data_ptr()) % kPiece == 0;
  for (int64_t d = 0; d < 3; ++d) {
    aligned = aligned && (t.size(d) == 1 || t.stride(d) * element % kPiece == 0);
  }
  if (aligned) return t;
  return t.transpose(1, 2).clone(at::MemoryFormat::Contiguous).transpose(1, 2);
}

at::Tensor position_major(const at::Tensor& t) {
  return t.transpose(1, 2).contiguous().transpose(1, 2);
}

at::Tensor padded_logsumexp(const at::Tensor& logsumexp) {
  constexpr int64_t kWarpRows = 32;
  const auto room = (kWarpRows - logsumexp.size(2) % kWarpRows) % kWarpRows;
  return at::constant_pad_nd(logsumexp, {0, room}, std::numeric_limits<double>::infinity());
}

}  // namespace perigee::cuda
