// A mixture of experts: tokens are dispatched to places in the queues of their experts, and
// combined again. Each function is one op of a captured graph (graph/ops.h), forward and backward,
// so that experts can be sharded and tokens sent to them; outside of a capture it runs as ATen ops.
//
// Tokens come in groups, [g, t]; every expert has the same number of places for each group.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace perigee::experts {

// expert [g, t, k] int64: the experts chosen for each token, in [0, experts). Returns two tensors.
// slot [g, t, k] int64: expert * places + the place in its queue, in the order of the group's
// tokens, or -1 where the queue is full. counts [g, experts] int64: the places in use. With
// `dropless` a token without a place is an error when the op runs.
std::pair<at::Tensor, at::Tensor> slots(const at::Tensor& expert, int64_t experts, int64_t places,
                                        bool dropless = false);

// source [g, t, k, w]: copies rows to their slots. Returns [experts, g, places, w], 0 in
// unused slots.
at::Tensor dispatch(const at::Tensor& source, const at::Tensor& slot, int64_t experts,
                    int64_t places);

// queue [experts, g, places, w]: gathers rows from their slots. Returns [g, t, k, w], 0 where a
// token has no slot.
at::Tensor combine(const at::Tensor& queue, const at::Tensor& slot);

// self [experts, g, places, w] times weight [experts, w, h], for the places that are taken. Returns
// [experts, g, places, h], 0 at the others.
at::Tensor grouped_mm(const at::Tensor& self, const at::Tensor& weight, const at::Tensor& counts);

// The ops composed of ATen ops, for any device. `first`: the first expert of the queue; tokens of
// experts that the queue does not hold have no slot in it.
namespace plain {
std::pair<at::Tensor, at::Tensor> slots(const at::Tensor& expert, int64_t experts, int64_t places);
at::Tensor dispatch(const at::Tensor& source, const at::Tensor& slot, int64_t experts,
                    int64_t places, int64_t first = 0);
at::Tensor combine(const at::Tensor& queue, const at::Tensor& slot, int64_t first = 0);
at::Tensor grouped_mm(const at::Tensor& self, const at::Tensor& weight, const at::Tensor& counts);
// Returns [experts, w, h]: for each expert the sum over its taken places of self times grad
// [experts, g, places, h].
at::Tensor grouped_outer(const at::Tensor& self, const at::Tensor& grad, const at::Tensor& counts);
}  // namespace plain

}  // namespace perigee::experts
