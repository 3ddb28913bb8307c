// Shardings that the exact solver finds: which weights are split over which axes, and how.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"
#include "shard/assignment.h"

namespace perigee::shard {

struct Planned {
  std::vector<std::string> axes = {"tensor"};  // planned together
  AssignmentOptions options = {};
};

struct PlannedShardings {
  // Weights of two dims or more that are cut, and how on each of the axes.
  std::map<std::string, mesh::Placements> split;
  std::vector<std::string> whole;  // those that stay whole
  size_t pins = 0;                 // values on the way that are pinned, too
  double cost = 0;  // of a microbatch on a rank, in bytes moved: work, and weights that stay whole,
  double bound = 0;  // are counted so; no other way costs less
};

// Places the parameters on the axes so that the graph costs least with what the plan has on the
// other axes (assignment.h), and pins the values that propagation would bring elsewhere. Throws
// Error for axes that the mesh lacks or that are named twice, and where no weight can be split: the
// largest, and why.
PlannedShardings place_planned(plan::Plan& plan, const graph::Graph& graph, const Planned& planned);

}  // namespace perigee::shard
