// Shardings that the exact solver finds: which weights are split over which axes, and how.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
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

// Returns where the axes stand in the mesh, ascending. Throws Error, of the method, for axes that
// the mesh lacks or that are named twice.
std::vector<int> find_axes(const mesh::Mesh& mesh, const std::vector<std::string>& axes,
                           std::string_view method);

// Places the parameters as they lie on the axes (per value, in the order of the mesh), and pins
// what propagation would bring elsewhere. Without costs.
PlannedShardings place_lying(plan::Plan& plan, const graph::Graph& graph,
                             const std::vector<int>& axes,
                             const std::vector<mesh::Placements>& lying);

}  // namespace perigee::shard
