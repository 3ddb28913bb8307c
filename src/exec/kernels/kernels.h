// Fast CPU kernels of Perigee's own ops (graph/ops.h). One file for each family; each returns the
// kernel for the op's types, or nothing where it has none for them (then the reference's kernel
// computes the op).
#pragma once

#include "exec/ops/op.h"

namespace perigee::exec {

// Returns the kernel that a CPU rank runs for any op but collectives: a fast one, else the
// reference's, else LibTorch's. What it allocates depends on the op, its arguments and its
// operands' types and strides only, never on values.
Kernel cpu_kernel(const Op& op);

namespace kernels {

// float32 by blocks of rows (attention_rows.h), other types by flash attention; with dropout or
// bias the reference's.
Kernel attention(const Arguments& arguments);
Kernel attention_backward(const Arguments& arguments);

Kernel dropout(const Arguments& arguments);

// float32 and bfloat16; LibTorch's op for others and for strided operands.
Kernel gelu(const Arguments& arguments);
Kernel gelu_backward(const Arguments& arguments);

// float32 and bfloat16, computed in float32.
Kernel rotary(const Arguments& arguments);
Kernel rotary_backward(const Arguments& arguments);

// float32 and bfloat16, computed in float32.
Kernel swiglu(const Arguments& arguments);
Kernel swiglu_backward(const Arguments& arguments);

Kernel rms_norm(const Arguments& arguments);
Kernel rms_norm_backward(const Arguments& arguments);

// One pass over the logits each; the backward pass may write where the logits are.
Kernel cross_entropy(const Arguments& arguments);
Kernel cross_entropy_backward(const Arguments& arguments);

// perigee::reshape where it is an instruction: a contiguous copy, always.
Kernel reshape(const Arguments& arguments);

// perigee::copy_, accumulate_, scale_, squared_norm, clip_scale, update_loss_scale_: nothing is
// allocated but results.
Kernel copy(const Arguments& arguments);
Kernel accumulate(const Arguments& arguments);
Kernel scale(const Arguments& arguments);
Kernel squared_norm(const Arguments& arguments);
Kernel clip_scale(const Arguments& arguments);
Kernel update_loss_scale(const Arguments& arguments);

// The step of an elementwise optimizer (optim/all.h) on a flat bucket; nothing for other ops.
Kernel optimizer(const Arguments& arguments);

// adafactor in three passes, with sums over ranks between them, and muon in as many (graph/ops.h).
Kernel adafactor_sums(const Arguments& arguments);
Kernel adafactor_moments(const Arguments& arguments);
Kernel adafactor(const Arguments& arguments);
Kernel muon_update(const Arguments& arguments);
Kernel orthogonalize(const Arguments& arguments);
Kernel muon(const Arguments& arguments);

}  // namespace kernels
}  // namespace perigee::exec
