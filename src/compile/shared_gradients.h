// Gradients of parameters that several stages of a pipeline have: each adds up its own.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "graph/graph.h"

namespace perigee::compile {

struct SharedGradients {
  std::vector<bool> sums;  // by node: adds up what several stages make, for an output alone
  // By output and stage: what the stage makes of the gradient, to be added up there. Gradients that
  // one stage makes alone are left out.
  std::map<size_t, std::map<int64_t, std::vector<graph::ValueId>>> shares;
};

// `parts` by node (plan::parts_of), `stages` by part.
SharedGradients find_shared_gradients(const graph::Graph& graph, const std::vector<int>& parts,
                                      const std::vector<int>& stages);

}  // namespace perigee::compile
