// The summary of a graph that `perigee graph --json` prints.
#pragma once

#include <string>

#include "graph/graph.h"

namespace perigee::graph {

// Returns a JSON object (perigee.graph/1) on many lines:
//   hash       structural_hash
//   inputs     [{kind, name, dtype, shape, bytes, trainable?}]
//   outputs    [{kind, name, value}]                   value: its name by value_names
//   scopes     [{path, type, parameters, parameter_bytes, nodes, flops}]   counts include the scopes inside
//   nodes      [{op, scope, phase, args, results: [{name, dtype, shape}], flops}]
//   totals     {parameters, parameter_bytes, trainable, nodes, flops_forward, flops_backward}
// Args refer to values by name. An infinite or undefined number is written as a string.
std::string summary(const Graph& graph);

}  // namespace perigee::graph
