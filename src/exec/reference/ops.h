// Perigee's own ops (graph/ops.h) in their simplest form, composed of ATen ops.
#pragma once

#include "exec/ops/op.h"
#include "exec/ops/random.h"

namespace perigee::exec {

// Returns the kernel of a `perigee::` op that needs no mesh, or of a LibTorch op whose results have
// other types than the graph's on some device; nothing for other ops.
Kernel reference_op(const Op& op);

// aten::native_layer_norm, with statistics of the op's types.
Kernel layer_norm(const Arguments& arguments);
Kernel layer_norm_backward(const Arguments& arguments);

// Norms of sums (graph/ops.h): by the kernel of the norm.
Kernel add_layer_norm(const Arguments& arguments);
Kernel add_rms_norm(const Arguments& arguments);
Kernel rms_norm_backward_add(const Arguments& arguments);

// perigee::addmm_, mm_ and embedding_backward_.
Kernel product_in_place(const Arguments& arguments);
Kernel embedding_backward_in_place(const Arguments& arguments);

// Rounding to eight-bit floats (graph/ops.h), on any device.
Kernel fp8(const Arguments& arguments);
Kernel fp8_cast(const Arguments& arguments);
Kernel fp8_blocks(const Arguments& arguments);
Kernel fp8_rows(const Arguments& arguments);
Kernel fp8_cast_rows(const Arguments& arguments);
Kernel fp8_amax_rows(const Arguments& arguments);
Kernel scaled_product(const Arguments& arguments);
Kernel fp8_amax(const Arguments& arguments);
Kernel fp8_scale(const Arguments& arguments);
Kernel fp8_history(const Arguments& arguments);
Kernel fp8_held(const Arguments& arguments);

// Steps of adafactor and muon (graph/ops.h), on any device.
Kernel adafactor_sums(const Arguments& arguments);
Kernel adafactor_moments(const Arguments& arguments);
Kernel adafactor(const Arguments& arguments);
Kernel muon_update(const Arguments& arguments);
Kernel orthogonalize(const Arguments& arguments);
Kernel muon(const Arguments& arguments);

// Newton-Schulz iteration with the quintic of Jordan et al. 2024 on x [r, c], in place: moves
// singular values below one to about one. `squares` [2, s, s], s = min(r, c), and `next` [r,
// c]: workspace.
void newton_schulz(const at::Tensor& x, const at::Tensor& squares, at::Tensor next, int64_t steps);

// exec::dropout, or the same function for the tensors' device.
using Dropout = void (*)(const at::Tensor& self, at::Tensor& out, double p,
                         const RandomStream& stream, const RandomBlock& block);

// Attention composed of ATen ops, on any device.
Kernel cached_attention(const Arguments& arguments);
Kernel attention_math(const Arguments& arguments, Dropout dropout);
Kernel attention_backward_math(const Arguments& arguments, Dropout dropout);

}  // namespace perigee::exec
