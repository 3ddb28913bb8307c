// Shardings that the exact solver finds: which weights are split, over which axes and how.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"
#include "shard/solver/assignment.h"

namespace perigee::shard {

struct PlannedAxes {
  std::vector<std::string> axes = {"tensor"};  // planned together
  AssignmentOptions options = {};
};

struct PlannedShardings {
  // Weights of two or more dims that are split, with their placements on each of the axes.
  std::map<std::string, mesh::Placements> split;
  std::vector<std::string> whole;  // weights that stay replicated
  size_t pins = 0;                 // number of other values that are pinned
  // cost of a microbatch on a rank, in bytes moved, with the prices of AssignmentOptions
  double cost = 0;
  double bound = 0;  // lower bound on the cost
};

// Places the parameters on the axes so that the graph costs least, given the plan on the other axes
// (assignment.h), and pins the values that propagation would place otherwise. Throws Error for axes
// that the mesh lacks or that are named twice, and if neither weights nor samples can be split
// (with the largest weights and the reasons).
PlannedShardings place_planned(plan::Plan& plan, const graph::Graph& graph,
                               const PlannedAxes& planned);

// Returns the positions of the axes in the mesh, ascending. Throws Error in the name of the method
// for axes that the mesh lacks or that are named twice.
std::vector<int> find_axes(const mesh::Mesh& mesh, const std::vector<std::string>& axes,
                           std::string_view method);

// Places the parameters on the axes as given ([value][axis], axes in mesh order), and pins the
// values that propagation would place otherwise. `stages`: the stage of each value, required where
// stages have unequal submeshes. The result has no costs.
PlannedShardings place_values(plan::Plan& plan, const graph::Graph& graph,
                              const std::vector<int>& axes,
                              const std::vector<mesh::Placements>& values,
                              const std::vector<int>& stages = {});

}  // namespace perigee::shard
