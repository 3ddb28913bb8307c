// The sharding of a graph on the planned axes of the mesh as a problem of the exact solver (as in
// Alpa, Zheng et al. 2022). Every node takes one of its sharding options; every weight, and every
// value that several nodes read, takes one of its placements; edges cost the redistributes between
// them. Repeated blocks of large graphs are folded into two, whose costs count once for each block.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "mesh/placement.h"
#include "plan/plan.h"
#include "shard/solver/sharding_options.h"
#include "solve/problem.h"

namespace perigee::shard {

struct AssignmentOptions {
  WorkPrices prices;
  int64_t smallest = 0;  // bytes; smaller parameters of two or more dims are not split
  // The price, in bytes moved, of a byte saved for the backward pass, and of a byte of a parameter.
  double saved_byte = 0, parameter_byte = 0;
  // Extra cost of a replicated weight of two or more dims, relative to gathering it in each pass:
  // so a weight is split wherever an option costs no more than that. 0: no extra cost.
  double replicated_factor = 1.01;
  bool recompute = false;  // blocks are recomputed in the backward pass
};

// The costs of solutions by groups of nodes. A value belongs to the group that produces it, a
// parameter to the group that reads it first.
struct GroupTimes {
  // [group][solution]: cost of work and of redistributes within the group; its part in the
  // forward pass.
  std::vector<std::vector<double>> time, forward;
  // Cost of redistributes from one group to another, [solution of the first * solutions + solution
  // of the second]; infinity if there is no path.
  std::map<std::pair<int, int>, std::vector<double>> between;
};

class Assignment {
 public:
  // `axes`: the planned axes of the mesh. `plan`: the sharding on the other axes; its shards and
  // pins on the planned axes are kept. All references must outlive this. Throws Error if the axes
  // together have too many options.
  Assignment(const graph::Graph& graph, const plan::Plan& plan, std::vector<int> axes,
             const AssignmentOptions& options);
  ~Assignment();

  const solve::AssignProblem& problem() const;

  // Returns each value's placements on the planned axes, in their order, in a solution of the
  // problem; open: propagation decides.
  std::vector<mesh::Placements> placements(std::span<const int> choice) const;
  // Returns the placements of the shard that is saved for the backward pass.
  std::vector<mesh::Placements> saved(std::span<const int> choice) const;

  // Returns the costs of solutions for one pass through the graph, without the prices of saved
  // bytes, parameters and replicated weights. `groups`: of each node, from 0.
  GroupTimes times(const std::vector<std::vector<int>>& solutions,
                   const std::vector<int>& groups) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Solves the problem within an amount of work that no clock limits: returns the optimum, or the best
// solution found with a lower bound, at worst that in which nothing is sharded on the planned axes.
// Throws Error if the plan's pins exclude that one and the search for another takes too long.
solve::Result solve_assignment(const Assignment& assignment);

}  // namespace perigee::shard
