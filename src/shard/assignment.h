// How a graph is run on some axes of the mesh, together, as a problem of the exact solver (as in
// Alpa, Zheng et al. 2022): every node takes one of its ways, every weight and every value that
// several read comes to lie somewhere, and between them stands what redistributing costs. In large
// graphs blocks that repeat are two, which take turns: what they do counts as often as it happens.
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
#include "shard/ways.h"
#include "solve/problem.h"

namespace perigee::shard {

struct AssignmentOptions {
  WorkPrices prices;
  int64_t smallest = 0;  // parameters of two dims or more and fewer bytes stay whole
  // What a byte costs that a rank keeps for the backward pass, in bytes moved; a byte of a
  // parameter.
  double kept_byte = 0, held_byte = 0;
  // How much dearer a weight of two dims or more that stays whole is than one that is stored in
  // pieces and gathered for each pass: so it is split wherever the rules have a way that is no
  // dearer than that. 0: it costs what it takes.
  double whole = 1.01;
  bool again = false;  // blocks run again in the backward pass
};

// What solutions take, by groups of nodes. A value is in the group that makes it, a parameter in
// that which reads it first.
struct GroupTimes {
  // [group][solution]: of what it does and moves; of that, in the forward pass.
  std::vector<std::vector<double>> time, forward;
  // Of what is moved from one group to another, [solution of the first * solutions + solution of
  // the second]; infinity where there is no way.
  std::map<std::pair<int, int>, std::vector<double>> between;
};

class Assignment {
 public:
  // `axes`: of the mesh, those that are planned. `plan` says how the graph runs on the others. What
  // it has sharded or pinned on these stays so. All references must outlive this. Throws Error
  // where so many axes have too many choices.
  Assignment(const graph::Graph& graph, const plan::Plan& plan, std::vector<int> axes,
             const AssignmentOptions& options);
  ~Assignment();

  const solve::AssignProblem& problem() const;

  // Returns where each value lies on the axes, in their order, by a solution of the problem; open:
  // where propagation brings it.
  std::vector<mesh::Placements> placements(std::span<const int> choice) const;
  // The same of what is kept of it for the backward pass.
  std::vector<mesh::Placements> kept(std::span<const int> choice) const;

  // Returns what solutions take, once through the graph: with nothing for what is kept, held or
  // whole. `groups`: of each node, from 0 on.
  GroupTimes times(const std::vector<std::vector<int>>& solutions,
                   const std::vector<int>& groups) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::shard
