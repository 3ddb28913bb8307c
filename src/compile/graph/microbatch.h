// Separates the ops of a microbatch from those that run once before all microbatches.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"
#include "mesh/axis_set.h"
#include "shard/loss/classify_loss.h"

namespace perigee::compile {

// The nodes that run once per microbatch, and those that run before the first microbatch.
struct Microbatches {
  // A perigee::step_average node: its operand is summed over the microbatches in the prologue.
  struct Average {
    graph::NodeId node;
    graph::ValueId source;  // the value to sum: the operand, or, where that is an all-reduced sum,
                            // the operand of the all-reduce
    mesh::AxisSet axes;     // reduce the average over these; empty: it is replicated
  };
  std::vector<graph::NodeId> prologue;
  std::vector<graph::NodeId> micro;
  std::vector<Average> averages;
  // Of losses and gradients in their sum over the microbatches: 1 / count for a mean loss.
  double factor = 1;
};

// Sorts the nodes into prologue and microbatch, and removes nodes that only other ranks need from
// the rank's graph (`part`); its collectives stay. Throws Error when a step average depends on more
// than data inputs. `kind`, mean or sum, matters for several microbatches only.
Microbatches cut_microbatches(graph::Graph& local, int64_t microbatches, shard::LossKind kind);

}  // namespace perigee::compile
