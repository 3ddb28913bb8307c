// Pins that make propagation reproduce a given sharding.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "mesh/placement.h"
#include "plan/plan.h"

namespace perigee::shard {

// Returns the pins, by value name, that propagation needs beside the plan's own to give every value
// that a node reads its placements of `wanted` on the axes ([value][axis]; open: any). On other
// axes the pins are open.
std::map<std::string, mesh::Placements> find_pins(const graph::Graph& graph, const plan::Plan& plan,
                                                  const std::vector<int>& axes,
                                                  const std::vector<mesh::Placements>& wanted);

}  // namespace perigee::shard
