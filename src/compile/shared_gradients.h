// Gradients of parameters that several parts of a pipeline use: each adds up its own.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "graph/graph.h"

namespace perigee::compile {

struct SharedGradients {
  std::vector<bool> sums;  // by node: adds up what several parts make, for an output alone
  // By output, stage and part: what the part makes of the gradient, to be added up there. Gradients
  // that one part makes alone are left out.
  std::map<size_t, std::map<int64_t, std::map<int, std::vector<graph::ValueId>>>> shares;
};

// `parts` by node (plan::parts_of), `stages` by part.
SharedGradients find_shared_gradients(const graph::Graph& graph, const std::vector<int>& parts,
                                      const std::vector<int>& stages);

}  // namespace perigee::compile
