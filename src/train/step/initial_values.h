// The first values of parameters and buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "graph/graph.h"
#include "mesh/placement.h"

namespace perigee::train {

// Returns the named tensor, computed by the init graph (Captured::init). Throws Error for a
// name that the graph lacks.
at::Tensor initial_value(const graph::Graph& init, const std::string& name, uint64_t seed);

// Returns a view of that part of a full tensor.
at::Tensor part_of(at::Tensor whole, const std::vector<mesh::Range>& ranges);

}  // namespace perigee::train
