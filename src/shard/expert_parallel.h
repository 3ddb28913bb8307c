// Where the experts of a mixture and their queues lie when experts are shared out over axes
// (GShard, Lepikhin et al. 2020).
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::shard {

struct ExpertParallel {
  std::vector<std::string> axes;      // experts are shared out over their ranks
  std::vector<std::string> tokens;    // those of them over which the batch is sharded too
  std::vector<std::string> tensor;    // those over which each is split; none: experts are whole
  std::vector<std::string> gathered;  // those of `tensor` over which the batch is sharded too
};

// Pins, on these axes alone, the weights of experts (what perigee::grouped_mm multiplies by, [e,
// in, out]), their queues, and the tokens that come back. An expert is split as an MLP is: by
// outputs in its first product, by inputs in a product behind another; where the batch is sharded
// over the ranks that split it, they have each other's queues. Returns the weights' names.
// Throws Error for an axis that the mesh lacks, a graph without experts, experts that do not divide
// over the axes, and weights that lie there already or are too small.
std::vector<std::string> place(plan::Plan& plan, const graph::Graph& graph,
                               const ExpertParallel& experts);

}  // namespace perigee::shard
