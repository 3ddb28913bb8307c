// Placements that shard the sequence over an axis through the whole model: every op works on its
// part, attention exchanges heads, keys or values.
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
    ring,    // keys and values pass from rank to rank; none holds all of them (Liu et al. 2023)
  };
  std::string axis;
  Attention attention = Attention::heads;
  // For gather and ring: whether each rank has one piece from the front and one from the end of the
  // sequence, which balances causal attention. Left out: if it does and the sequence divides into
  // such pieces.
  std::optional<bool> zigzag = {};
};

// Pins, on this axis only, the data inputs [batch, sequence] and the inputs, outputs and gradients
// of attention. Keeps the plan's pins on other axes. Returns whether shards are zigzag. Throws
// Error in the name of `method` for an axis that the mesh lacks or that splits the batch, a model
// without such inputs or without attention over them, sequences or heads that do not divide over
// the axis, an attention bias with zigzag shards unless keys go round a ring, and a trained bias
// that broadcasts if they do.
bool place(plan::Plan& plan, const graph::Graph& graph, const SequenceSharding& sharding,
           const std::string& method);

}  // namespace perigee::shard
