// Fast CPU kernels of Perigee's own ops (graph/ops.h), one file per family. Each function returns
// the kernel for the op's types, or nothing where there is none (then the reference's kernel
// is used).
#pragma once

#include "exec/ops/op.h"

namespace perigee::exec {

// Returns the kernel of any op except collectives on a CPU rank: a fast one, else the reference's,
// else LibTorch's. Its allocations depend only on the op, its arguments and its operands' types and
// strides, never on values.
Kernel cpu_kernel(const Op& op);

namespace kernels {

// By blocks of rows (attention_rows.h), except float64 without documents by LibTorch's flash
// attention; with dropout or bias the reference's kernel.
Kernel attention(const Arguments& arguments);
Kernel attention_backward(const Arguments& arguments);

// float32, bfloat16 and float64 with heads of up to 512 elements.
Kernel cached_attention(const Arguments& arguments);

// aten::add.Tensor of float32 and bfloat16; LibTorch's op for other types and for strided operands.
Kernel add(const Arguments& arguments);

Kernel dropout(const Arguments& arguments);

// float32 and bfloat16; LibTorch's op for other types and for strided operands.
Kernel gelu(const Arguments& arguments);
Kernel gelu_backward(const Arguments& arguments);
Kernel gelu_backward_sum(const Arguments& arguments);

// float32 and bfloat16, computed in float32.
Kernel rotary(const Arguments& arguments);
Kernel rotary_backward(const Arguments& arguments);

// float32 and bfloat16, computed in float32.
Kernel swiglu(const Arguments& arguments);
Kernel swiglu_backward(const Arguments& arguments);

// aten::mm and aten::addmm: by blocks where that is faster (product.h), else by LibTorch.
Kernel product(const Arguments& arguments);
Kernel product_with_bias(const Arguments& arguments);

// perigee::mm_gelu and mm_gelu_backward: the product, then GELU or its gradient.
Kernel activated_product(const Arguments& arguments);

// perigee::addmm_ and mm_. Factors of 16 bits are added up in float32: by blocks where the CPU has
// instructions for bfloat16, else by LibTorch's BLAS.
Kernel product_in_place(const Arguments& arguments);

// perigee::embedding_backward_ of float32 and float64; the reference's kernel for other types.
Kernel embedding_backward_in_place(const Arguments& arguments);

// float32, float64 and bfloat16, of a sum and with an addition too: perigee::add_rms_norm and
// rms_norm_backward_add, add_layer_norm and layer_norm_backward_add. A norm has the same bits with
// and without the addition before it.
Kernel rms_norm(const Arguments& arguments);
Kernel rms_norm_backward(const Arguments& arguments);
Kernel layer_norm(const Arguments& arguments);
Kernel layer_norm_backward(const Arguments& arguments);

// One pass over the logits each; the gradient may be written over the logits.
Kernel cross_entropy(const Arguments& arguments);
Kernel cross_entropy_backward(const Arguments& arguments);

// aten::cat and aten::stack of contiguous tensors of one type; LibTorch's op for others.
Kernel join(const Arguments& arguments);

// perigee::reshape as an instruction: always a contiguous copy.
Kernel reshape(const Arguments& arguments);

// perigee::copy_, accumulate_, scale_, squared_norm, clip_scale, update_loss_scale_, examine_step_,
// restore_: they allocate results only.
Kernel copy(const Arguments& arguments);
Kernel accumulate(const Arguments& arguments);
Kernel scale(const Arguments& arguments);
Kernel squared_norm(const Arguments& arguments);
Kernel clip_scale(const Arguments& arguments);
Kernel update_loss_scale(const Arguments& arguments);
Kernel examine_step(const Arguments& arguments);
Kernel restore(const Arguments& arguments);

// The step of an elementwise optimizer (optim/all.h) on a flat bucket; nothing for other ops.
Kernel optimizer(const Arguments& arguments);

// adafactor and muon, in three passes each, between which ranks communicate (graph/ops.h).
Kernel adafactor_sums(const Arguments& arguments);
Kernel adafactor_moments(const Arguments& arguments);
Kernel adafactor(const Arguments& arguments);
Kernel muon_update(const Arguments& arguments);
Kernel orthogonalize(const Arguments& arguments);
Kernel muon(const Arguments& arguments);

}  // namespace kernels
}  // namespace perigee::exec
