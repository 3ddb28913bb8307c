// clang-format off
// Perigee's own ops, beside ATen's. Shapes in brackets; "type" means that the result's type carries
// the shape and dtype. Capture emits those of the first two groups, shard/ and compile/ the others.
//
// -- Shape and constants
//   perigee::reshape(self)                     any view or reshape that keeps row-major order; type
//   perigee::expand(self)                      broadcast of size-1 and leading dims; type
//   perigee::full(value)                       every factory with one value (zeros, ones, full, empty as 0); type
//   perigee::cast(self)                        dtype conversion (aten::_to_copy); type
//   perigee::random(kind, key, low, high | mean, std | p)   type; kind: uniform normal bernoulli integer exponential.
//                                              Philox4x32-10, exec/ops/random.h; key numbers the random ops of the graph.
//                                              uniform and integer draw from [low, high), exponential has rate 1
//
// -- Composites that stay one node, forward and backward
//   perigee::dropout(self, p, key)             self * mask / (1 - p); its backward is the same op on the gradient
//   perigee::attention(query [b,h,s,d], key [b,g,t,d], value [b,g,t,e], bias?, causal, scale, p, random_key,
//       documents?, key_documents?)
//       -> (output [b,h,s,e], logsumexp [b,h,s])           g divides h (grouped queries); bias broadcasts to
//       [b,h,s,t] and is added to the scaled scores; a row with only -inf gives 0; causal: key j <= query i.
//       logsumexp is float64 for float64, else float32. documents [b,s], key_documents [b,t]: both or neither,
//       int64; a query sees keys with its own number
//   perigee::attention_backward(grad, query, key, value, bias?, output, logsumexp, causal, scale, p, random_key,
//       bias_grad, documents?, key_documents?) -> (d_query, d_key, d_value, d_bias?)    d_bias (bias's shape) only
//       where bias_grad
//   perigee::merge_attention(self [b,h,s,e], logsumexp [b,h,s], other, other_logsumexp) -> (output, logsumexp)
//       of attention to the keys of both, typed as logsumexp; shard/ adds it
//   perigee::cached_attention(query [b,h,s,d], key [b,g,s,d], value [b,g,s,e], positions [b,s], slots [b],
//       key_cache [n,g,t,d], value_cache [n,g,t,e], scale, window = 0) -> [b,h,s,e]
//       writes each key and value to row `positions` of its slot's cache, in place; then a query at position p sees the
//       rows 0 to p of its slot or, with a window, the last `window` of them. Position -1: no token; its result is 0, and
//       the last row of the slot's caches, which no other position names, is undefined. train/generate adds it
//   perigee::swiglu(gate, up)                  silu(gate) * up
//   perigee::swiglu_backward(grad, gate, up) -> (d_gate, d_up)
//   perigee::rotary(self [*,s,d], cos [s,d], sin [s,d])   self * cos + cat(-second, first half of self) * sin; here and
//                                              below, cos and sin may be float32 beside bfloat16 or float16
//   perigee::rotary_backward(grad [*,s,d], cos, sin) -> d_self
//   perigee::rms_norm(self [*, n], weight? [n], eps) -> (output, rstd [*, 1])
//       here and below, a norm of float32 may make output, and read grad, in bfloat16 or float16
//   perigee::rms_norm_backward(grad, self, weight?, rstd) -> (d_self, d_weight?)
//   perigee::add_rms_norm(self [*, n], other, weight? [n], eps) -> (sum, output, rstd [*, 1])
//       sum = self + other, and its norm. other may be of a lower precision. compile/ makes this op and the four after it
//   perigee::rms_norm_backward_add(grad, self, weight?, rstd, other) -> (d = d_self + other, d_weight?, low?, sum?)
//       low: d of float32 in bfloat16 or float16; sum: of low's rows [n], the gradient of a bias
//   perigee::add_layer_norm(self, other, normalized_shape, weight?, bias?, eps) -> (sum, output, mean, rstd)
//   perigee::layer_norm_backward_add(grad_out, input, normalized_shape, mean, rstd, weight?, bias?, output_mask, other)
//       -> (d_input + other, d_weight?, d_bias?, low?, sum?)    otherwise as aten::native_layer_norm and its backward op
//   perigee::gelu_backward_sum(grad_output, self [*, n], approximate) -> (d_self, sum [n] of d_self's rows: the gradient
//                                              of a bias before GELU)
//   perigee::cross_entropy(logits [n, c], target [n], weight? [c], ignore_index, label_smoothing)
//       -> (losses [n], logsumexp [n])                      losses of ignored labels are 0. With s = label_smoothing,
//       w = weight or 1: (1-s) w[y] (lse - x[y]) + s/c sum_k w[k] (lse - x[k]); logsumexp typed as attention's
//   perigee::cross_entropy_backward(grad [n], logits, target, logsumexp, weight?, ignore_index, label_smoothing)
//       -> d_logits [n, c]
//   perigee::nll(self [n, c, *], target [n, *], weight? [c], ignore_index) -> losses [n, *]
//   perigee::nll_backward(grad [n, *], self, target, weight?, ignore_index) -> d_self
//   perigee::label_weight(target, weight?, ignore_index, dtype) -> [] the mean's denominator: the sum of the labels'
//                                              weights, or their count; float32 or float64
//   perigee::step_average(self [], total=false) -> []    identity within one microbatch; compile/ replaces it by the
//                                              average, or where `total` the sum, of `self` over all microbatches of
//                                              the step, known before the first backward
//   perigee::step_share(self []) -> []         compile/ replaces it by self / the number of microbatches
//   perigee::reduction(self [], kind, proven=false, ended?) -> []    identity: the loss `self` is a mean, a sum or a weighted
//                                              mean over samples (kind), as the model declares or, where `proven`, as the
//                                              graph of more samples shows; there also "mixed". compile/ removes it
//
// -- A mixture of experts (capture/composites/experts.h): groups g of tokens t with k choices each,
// e experts with c places for a group
//   perigee::expert_slots(expert [g,t,k], experts, places, dropless) -> (slot [g,t,k], counts [g,e])   int64; slot is
//       expert * places + place, in the order of tokens, or -1: no place left, an error where dropless. counts: places
//       taken. shard/ adds `before` [n,g,e], the counts of each rank of a group, and `index`, this rank's place among them
//   perigee::dispatch(source [g,t,k,w], slot, experts, places) -> queue [e,g,c,w]   rows to their slots, 0 elsewhere
//   perigee::combine(queue [e,g,c,w], slot) -> [g,t,k,w]     rows from their slots, 0 where there is none. Both: shard/
//                                              adds `first`, the first expert whose places the queue has
//   perigee::grouped_mm(self [e,g,c,w], mat2 [e,w,h], counts) -> [e,g,c,h]          for the places taken, 0 elsewhere
//   perigee::grouped_outer(self [e,g,c,w], grad [e,g,c,h], counts) -> [e,w,h]       sum over these places of self^T grad
// In local graphs, where ranks exchange the rows that they have for each other's experts:
//   perigee::expert_counts(expert [g,t,k]) -> [1,g,e] int64  how often each is chosen
//   perigee::route(slot, places, owners, held, group, groups) -> (order [r], target [r], counts [n])   int64, r = g t k:
//       the rows with a place, sorted by the rank that holds the expert (rank i: `held` of them from owners[i] on); where
//       each goes in that rank's [held, groups, c], of which this rank's tokens are groups `group` and following; and how
//       many go to each rank. Elements of order and target after the sum of counts are undefined
//   perigee::take_rows(self [*,w], index [r], counts [n,n], position, back) -> [r,w]    rows of self at
//       the leading elements of index: as many as this rank (`position`) sends (the sum of counts[position]) or, with back,
//       receives (the sum of counts[:, position])
//   perigee::put_rows(rows [r,w], index [r], counts, position, back) -> type    rows at these indices, 0 elsewhere
//
// -- Eight-bit floats; format is e4m3 (largest 448) or e5m2 (57344). compile/graph/fp8.cc adds them
// A number may be of the whole tensor ([]) or of each rank's part of it: then it is a tensor with a
// dim for each axis of the mesh ([ranks]), and a rank has one element
//   perigee::fp8(self, scale [] or [ranks], format)    self * scale in float32, saturated, rounded to the format to nearest even,
//                                              divided by scale, in self's type
//   perigee::fp8_cast(self, scale [], format)  the same without the division: eight bits wide (float8_e4m3, float8_e5m2)
//   perigee::fp8_blocks(self, format, dim, block, margin)    as fp8, with a scale for each `block` elements along dim
//   perigee::fp8_rows(self, amax, format, margin)            as fp8, with the scales of amax (below), which is broadcast
//   perigee::fp8_cast_rows(self [*,k], amax [*,1]?, format, margin) -> (eight bits wide, 1 / scale [*,1] float32)
//                                              as fp8_cast; without amax: with those of self's rows
//   perigee::fp8_amax_rows(self, dim) -> self's shape with 1 as dim, float32    largest magnitudes along dim, 0 of none
//   perigee::fp8_amax(self) -> [] or [ranks] float32   largest magnitude; 0 of an empty tensor. fp8_cast_amax: (fp8_cast, fp8_amax)
//   perigee::fp8_scale(amax [], [n], [ranks] or [ranks,n], format, margin, most_recent) -> [] or [ranks] float32
//                                              largest / 2^margin / amax, where of n values the first (most_recent) or the
//                                              largest counts; 1 where the result is not finite
//   perigee::fp8_history(self [n] or [ranks,n], amax [] or [ranks])    amax, followed by all but the last of self
//   perigee::fp8_held(self [2] or [ranks,2], scale [] or [ranks], interval) -> (scale, [2] or [ranks,2])
//                                              the scale in use, and the pair (that scale, its number of uses): self's scale
//                                              until it has been used `interval` times, then the given one
//
// -- Collectives in a local graph. `axis` names mesh axes ("data", or "data,context"), whose group
// holds this rank.
//   comm::all_reduce(self, axis, op)           op: sum, max, min, avg
//   comm::all_gather(self, axis, dim)          type; shards in group order, uneven sizes allowed
//   comm::reduce_scatter(self, axis, dim, op)  type
//   comm::all_to_all(self, axis, split_dim, cat_dim)
//   comm::shift(self, axis)                    self of the previous rank of the group, cyclically
//   comm::exchange(self [r,*], counts [n,n], axis, back)     type; rank i sends counts[i][j] rows to rank j; back: j to i
//   comm::broadcast(self, axis, root)
//   comm::send(self, axis, peer), comm::receive(axis, peer)
// In programs operands and results of these are flat, the ranks' parts one after the other;
// perigee::copy_ packs and unpacks them. compile/ adds `counts`, the parts' elements
// (all_to_all, shift: `sent` and `received`), and a second result where a collective needs a
// workspace (compile/draft/collective.h).
//
// -- In programs only (compile/ adds them).
//   comm::barrier(values, axis)      every rank reads what the others have written to the values, of which the ranks have
//                                    one copy; their memory is the result
//   perigee::mm_gelu(self [r,k], mat2 [k,c], bias [c]?) -> (GELU of pre, pre = self @ mat2 + bias)    GELU's tanh form;
//       GELU and d have the types' shapes, of r c elements; pre is [r,c], and read in any shape of r c elements
//   perigee::mm_gelu_backward(self [r,k], mat2 [k,c], pre) -> (d = (self @ mat2) GELU'(pre), d's sum over rows [c])
// A name ending in _ writes its first operand(s) in place and makes no result;
//    lr, step, scale and squared_norm are float64 scalars in memory.
//   perigee::copy_(self, source, scale = 1.0)              self = source * scale
//   perigee::accumulate_(self, other, scale = 1.0)         self += other * scale
//   perigee::addmm_(sum, self, mat2)                       sum += self @ mat2
//   perigee::embedding_backward_(sum [v,e], grad_output [t,e], indices [t], num_weights = v, padding_idx = -1)
//       sum[i] += the gradients whose index is i, in their order; none of padding_idx. The sum may be wider
//   perigee::scale_(self, scale)                           self *= scale
//   perigee::squared_norm(tensors) -> [] float64           sum over the list, in its order, of each one's sum of squares
//                                                          (each summed in float64)
//   perigee::clip_scale(squared_norm, loss_scale?, max_norm, factor) -> (norm [], scale []) float64
//       norm = f * sqrt(squared_norm); scale = f * min(1, max_norm / (norm + 1e-6)), NaN where norm is; max_norm <= 0: f.
//       f is factor, or factor / loss_scale (float32 []); then scale is NaN where squared_norm is not finite
//   perigee::update_loss_scale_(loss_scale, growth_tracker, skipped_steps, applied_step, squared_norm, step,
//       growth_factor, backoff_factor, growth_interval, min_scale = 0, patience?, hysteresis = 1)
//       torch.amp.GradScaler's update, on whether squared_norm is finite; counts the steps that are skipped; applied_step
//       = step - skipped_steps. float64 but for loss_scale. The scale does not fall below min_scale; with `patience`,
//       which counts the non-finite steps since it grew, it falls once that count reaches `hysteresis` (Megatron's rule)
//   perigee::adamw_(self, exp_avg, exp_avg_sq, gradient, lr, step, scale, beta1, beta2, eps, weight_decay)
//   perigee::adam_(...)                                    the same arguments; weight decay adds to the gradient
//   perigee::lion_(self, exp_avg, gradient, lr, step, scale, beta1, beta2, weight_decay)
//       self = self * (1 - lr weight_decay) - lr sign(beta1 exp_avg + (1 - beta1) gradient); exp_avg decays by beta2
//   perigee::sgd_(self, momentum_buffer?, gradient, lr, step, scale, momentum, dampening, nesterov, weight_decay)
//   perigee::rmsprop_, adagrad_, adamax_, nadam_, radam_(self, states, gradient, lr, step, scale, attributes, weight_decay)
//       states and attributes as src/optim/NAME.h lists them
//       torch.optim's formulas on flat buffers [n] with gradient * scale for the gradient; the momentum buffer is the
//       gradient itself where step is 1. With `guarded` and a scale that is NaN nothing changes. Types: all self's, or
//       self and states float32 and gradient bfloat16 or float16, or self bfloat16, states float32, gradient float32
//       or bfloat16 and one more operand `noise` (float32 [n], uniform in [0, 1)): self is rounded up where noise is
//       below the fraction that rounding discards, else down. With one more operand `low` (bfloat16 or float16 [n];
//       self is float32) low = self, rounded to nearest
//   perigee::adafactor_sums_(self, weights, gradients, scale, begins, shape)
//   perigee::adafactor_moments_(self, sums, row_var, col_var | variance, gradients, scale, step, begins, shape,
//       beta2_decay)
//   perigee::adafactor_(weights, sums, norm, lr, row_var, col_var | variance, gradients, scale, step, begins, shape,
//       clip_threshold, weight_decay)                      torch.optim.Adafactor's formulas on boxes (lists of tensors)
//       of a parameter of `shape`, whose first elements are `begins`, a box after the other. self of the first, `sums` of
//       the others, float64: sums of the gradients' squares over the last dim, over the last but one (where there are
//       two), and that of the weights' squares. self of the second, `norm` of the third: the sum of the updates' squares.
//       Both are summed over ranks in between. A scale that is NaN changes nothing, here and in muon
//   perigee::muon_update_(self [r, c], momentum_buffer, gradients, scale, begins, momentum, nesterov)
//       self = the update from the boxes' momentum, 0 outside the boxes
//   perigee::orthogonalize_(squares [2, s, s], other [r, c], self [r, c], steps)    s = min(r, c): Newton and Schulz'
//       iteration of Jordan et al. on self; the others are its workspace
//   perigee::muon_(weights, update, lr, scale, begins, weight_decay)
//       weights = weights * (1 - lr weight_decay) - lr sqrt(max(1, r / c)) update
//
// -- Random ops (perigee::random, dropout, attention with p > 0) draw for each element by its
// row-major index in the
//    whole step's tensor. shard/ adds, where the local tensor is a block, `global` (shape over all ranks of one
//    microbatch) and `begin` (the block's first index in it, per dim); left out: the local tensor is all of it. compile/
//    adds `batch_dim`, along which the step's microbatches follow each other; default 0; -1: all
//    microbatches draw the same numbers; and `batch_run` where they do so in each run of so many elements.
//
// src/capture/composites/ops.cc has the schemas (order, types, defaults) of those that run as
// dispatcher ops.
// clang-format on
#pragma once

#include <cstdint>
#include <string_view>

namespace perigee::graph {

// The inner dim and the result's columns of aten::_scaled_mm (a product of eight-bit matrices) must
// be multiples of this: devices read rows of 16 bytes.
inline constexpr int64_t kEightBitMultiple = 16;

// Returns true for ops whose result shares its operand's memory (transpose, slice, expand, ...);
// `perigee::reshape` is decided by compile/, which knows strides.
bool is_view(std::string_view op);

// Returns true for matrix products, convolutions and attention, forward and backward: the ops with
// more than a constant number of operations per element.
bool is_product(std::string_view op);

// Returns true for comm:: ops.
bool is_collective(std::string_view op);

// Returns true for ops that may draw random numbers by key (attention only where its p > 0).
bool is_random(std::string_view op);

// Returns true for ops that compute each element of their one result from the same (broadcast)
// element of their operands: ops that LibTorch tags `pointwise`, untagged ones of that kind
// (leaky_relu, ...), and perigee::cast, dropout and full.
bool is_pointwise(std::string_view op);

// Returns true for ops with several results of which the first may lie in an operand's memory: they
// read each element before they write the result's there (perigee::add_layer_norm, ...).
bool writes_in_place(std::string_view op);

// Returns the name of the argument of an ATen op that could only repeat its first result's shape
// (`input_sizes` of slice_backward), or "". Nodes leave it out; the executor fills it from the
// result's type.
std::string_view size_argument(std::string_view op);

}  // namespace perigee::graph
