// Placements of a mixture's experts and their queues under expert parallelism (GShard, Lepikhin et
// al. 2020).
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::shard {

struct ExpertParallel {
  std::vector<std::string> axes;      // axes that experts are sharded over
  std::vector<std::string> tokens;    // those of them that also shard the batch
  std::vector<std::string> tensor;    // axes that split each expert; none: experts are not split
  std::vector<std::string> gathered;  // those of `tensor` that also shard the batch
};

// Pins, on these axes only, the weights of experts ([e, in, out], factors of perigee::grouped_mm),
// their queues and the combined tokens. An expert is split as an MLP is: by outputs in its first
// product, by inputs in a later one. Axes that split experts and the batch gather the queues.
// Returns the weights' names. Throws Error for an axis that the mesh lacks, a graph without
// experts, experts that do not divide over the axes, and weights that are already placed there or
// too small.
std::vector<std::string> place(plan::Plan& plan, const graph::Graph& graph,
                               const ExpertParallel& experts);

}  // namespace perigee::shard
