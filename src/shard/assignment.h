// How a graph is run on one axis of the mesh as a problem of the exact solver (as in Alpa, Zheng et
// al. 2022): every node takes one of its ways, every weight and every value that several read comes
// to lie somewhere, and between them stands what redistributing costs. In large graphs blocks that
// repeat are two, which take turns: what they do counts as often as it happens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
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
  // What a byte costs that a rank keeps for the backward pass, in bytes moved.
  double kept_byte = 0;
};

// A weight of two dims or more that stays whole costs a little more than it would to store it in
// pieces and gather it for each pass: so it is split wherever the rules have a way that is no
// dearer than that.
class Assignment {
 public:
  // `plan` says how the graph runs on the other axes. What it has sharded or pinned on this axis
  // stays so. All references must outlive this.
  Assignment(const graph::Graph& graph, const plan::Plan& plan, int axis,
             const AssignmentOptions& options);
  ~Assignment();

  const solve::AssignProblem& problem() const;

  // Returns where each value lies on the axis by a solution of the problem; open: where propagation
  // brings it.
  std::vector<mesh::Placement> placements(std::span<const int> choice) const;

  // Returns the op of the problem that says where a parameter lies, and that option's place there;
  // -1 for one that nothing uses or that lies somewhere already.
  int op_of(graph::ValueId parameter) const;
  mesh::Placement option_of(int op, int option) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::shard
