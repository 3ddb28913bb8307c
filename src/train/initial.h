// First values of parameters and buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "graph/graph.h"
#include "mesh/placement.h"

namespace perigee::train {

// Returns the named tensor as the init graph (capture::Captured::init) makes it. Throws Error for a
// name that the graph lacks.
at::Tensor initial_value(const graph::Graph& init, const std::string& name, uint64_t seed);

// Returns the part of a whole tensor, sharing its memory.
at::Tensor part_of(at::Tensor whole, const std::vector<mesh::Range>& ranges);

}  // namespace perigee::train
