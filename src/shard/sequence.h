// Where tensors lie when the sequence is sharded over an axis through the whole model: all ops work
// on their part of it, attention needs all keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::shard {

struct SequenceSharding {
  enum class Attention : uint8_t {
    heads,   // all-to-all: each rank attends with some heads to the whole sequence (DeepSpeed
             // Ulysses, Jacobs et al. 2023)
    gather,  // all-gather of keys and values: each rank attends with its part of the queries
    ring,    // keys and values go round: no rank ever holds all of them (Liu et al. 2023)
  };
  std::string axis;
  Attention attention = Attention::heads;
  // Whether each rank's part of the sequence is one from its front and one from its end, so that
  // causal attention gives all ranks the same work. Left out: where it does and the sequence
  // divides so. Of gather and ring.
  std::optional<bool> zigzag = {};
};

// Pins, on this axis alone, the data inputs [batch, sequence] and what goes into and comes out of
// attention, with its gradients. Keeps what the plan pins on other axes. Returns whether it is
// sharded zigzag. Throws Error, named by `method`, for an axis that the mesh lacks or that splits
// the batch, a model without such inputs or without attention over their sequence, sequences or
// heads that do not divide over the axis, a bias of attention where shards are zigzag and keys do
// not go round, and one that is trained and broadcasts where they do.
bool place(plan::Plan& plan, const graph::Graph& graph, const SequenceSharding& sharding,
           const std::string& method);

}  // namespace perigee::shard
