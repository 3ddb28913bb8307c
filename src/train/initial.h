// First values of parameters and buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "graph/graph.h"
#include "mesh/placement.h"

namespace perigee::train {

// Returns the part of the named tensor that the init graph (capture::Captured::init) makes of it.
// One whole tensor lies in memory at a time. Throws Error for a name that the graph lacks.
at::Tensor initial_part(const graph::Graph& init, const std::string& name,
                        const std::vector<mesh::Range>& ranges, uint64_t seed);

// Returns the part of a whole tensor, sharing its memory.
at::Tensor part_of(at::Tensor whole, const std::vector<mesh::Range>& ranges);

}  // namespace perigee::train
