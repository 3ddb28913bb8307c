// Perigee's own ops, beside ATen's. Shapes in brackets; "type" means that the result's type carries
// the shape and dtype. Capture emits those of the first two groups, shard/ and compile/ the others.
//
// -- Shape and constants
//   perigee::reshape(self)                     any view or reshape that keeps row-major order; type
//   perigee::expand(self)                      broadcast of size-1 and leading dims; type
//   perigee::full(value)                       every factory with one value (zeros, ones, full,
//   empty as 0); type perigee::cast(self)                        dtype conversion (aten::_to_copy);
//   type perigee::random(kind, key, low, high | mean, std | p)   type; kind: uniform normal
//   bernoulli integer exponential.
//                                              Philox4x32-10, exec/random.h; key numbers the random
//                                              ops of the graph
//
// -- Composites that stay one node, forward and backward
//   perigee::dropout(self, p, key)             self * mask / (1 - p); its backward is the same op
//   on the gradient perigee::attention(query [b,h,s,d], key [b,g,t,d], value [b,g,t,e], bias?,
//   causal, scale, p, random_key)
//       -> (output [b,h,s,e], logsumexp [b,h,s])           g divides h (grouped queries)
//   perigee::attention_backward(grad, query, key, value, bias?, output, logsumexp, causal, scale,
//   p, random_key)
//       -> (d_query, d_key, d_value, d_bias?)
//   perigee::rms_norm(self [*, n], weight? [n], eps) -> (output, rstd [*, 1])
//   perigee::rms_norm_backward(grad, self, weight?, rstd) -> (d_self, d_weight?)
//   perigee::cross_entropy(logits [n, c], target [n], weight? [c], ignore_index, label_smoothing)
//       -> (losses [n], logsumexp [n])                      losses of ignored labels are 0
//   perigee::cross_entropy_backward(grad [n], logits, target, logsumexp, weight?, ignore_index,
//   label_smoothing)
//       -> d_logits [n, c]
//   perigee::nll(self [n, c, *], target [n, *], weight? [c], ignore_index) -> losses [n, *]
//   perigee::nll_backward(grad [n, *], self, target, weight?, ignore_index) -> d_self
//   perigee::label_weight(target, weight?, ignore_index) -> [] the mean's denominator: the sum of
//   the labels' weights perigee::step_average(self []) -> []       identity within one microbatch;
//   compile/ replaces it by the average of
//                                              `self` over all microbatches of the step, known
//                                              before the first backward
//
// -- Collectives in a local graph. `axis` names mesh axes ("data", or "data,context"), whose group
// holds this rank.
//   comm::all_reduce(self, axis, op)           op: sum, max, min, avg
//   comm::all_gather(self, axis, dim)          type; shards in group order, uneven sizes allowed
//   comm::reduce_scatter(self, axis, dim, op)  type
//   comm::all_to_all(self, axis, split_dim, cat_dim)
//   comm::broadcast(self, axis, root)
//   comm::send(self, axis, peer), comm::receive(axis, peer)
#pragma once

#include <string_view>

namespace perigee::graph {

// Returns true for ops whose result shares its operand's memory (transpose, slice, expand, ...);
// `perigee::reshape` is decided by compile/, which knows strides.
bool is_view(std::string_view op);

// Returns true for comm:: ops.
bool is_collective(std::string_view op);

// Returns true for ops that may draw random numbers by key (attention only where its p > 0).
bool is_random(std::string_view op);

// Returns true for ops that compute each element of their one result from the same (broadcast)
// element of their operands: what LibTorch tags `pointwise` or should (leaky_relu, ...), and
// perigee::cast, dropout and full.
bool is_pointwise(std::string_view op);

}  // namespace perigee::graph
