// What it takes for propagation to come to shardings that somebody else has chosen.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "mesh/placement.h"
#include "plan/plan.h"

namespace perigee::shard {

// Returns what must be pinned beside the plan's own placements for propagation to bring the values
// that nodes read where `wanted` (per value; open: anywhere) has them on the axis; on other axes
// pins are open.
std::map<std::string, mesh::Placements> find_pins(const graph::Graph& graph, const plan::Plan& plan,
                                                  const std::vector<int>& axes,
                                                  const std::vector<mesh::Placements>& wanted);

}  // namespace perigee::shard
