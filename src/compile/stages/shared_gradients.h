// Gradients of parameters that several parts of a pipeline use: each part sums its contributions.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::compile {

struct SharedGradients {
  std::vector<bool> sums;  // by node: only sums contributions of several parts for an output
  // By output, stage and part: the part's contributions to the gradient, to be summed there.
  // Gradients with one contributing part are left out.
  std::map<size_t, std::map<int64_t, std::map<int, std::vector<graph::ValueId>>>> shares;
};

// `parts` by node (plan::parts_of), `stages` by part.
SharedGradients find_shared_gradients(const graph::Graph& graph, const std::vector<int>& parts,
                                      const std::vector<int>& stages);

// Moves collectives that only change the placement of a gradient which several parts contribute to
// before the sum, so that each part redistributes its own contribution and sends nothing.
void redistribute_contributions(graph::Graph& graph, const plan::Pipeline& pipeline);

}  // namespace perigee::compile
