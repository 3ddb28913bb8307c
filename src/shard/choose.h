// Choosing how to run one node: the ways its pattern allows, and the cheapest of them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "mesh/mesh.h"
#include "mesh/placement.h"
#include "plan/plan.h"
#include "shard/redistribute.h"
#include "shard/rule.h"

namespace perigee::shard {

// How a node runs: where its operands must lie and where its results come to lie.
struct Choice {
  std::vector<mesh::Placements> operands, results;
  double cost = 0;
};

// What a plan forbids of how nodes run.
struct Forbidden {
  bool one_axis = false;    // no tensor may be split over several axes
  uint64_t share_over = 0;  // of products. Bits: axes of which one at least must split the work
};
Forbidden forbidden_by(const plan::Plan& plan);

// What is known when a node's turn comes.
struct Situation {
  std::vector<mesh::Placements> operands;                      // where the operands lie
  std::vector<std::vector<const mesh::Placements*>> versions;  // per operand: where it lies besides
  std::vector<uint64_t> free_on;  // per result, bits: axes on which it may stay Partial at no cost
  std::vector<const mesh::Placements*> pins;  // per result: where the plan wants it, or nullptr
  std::vector<const mesh::Placements*>
      goals;                // per result: where its parameter lies whose gradient
                            // it is, or nullptr; Partial is as good as replicated
  bool one_axis = false;    // no tensor may be split over several axes
  uint64_t share_over = 0;  // bits: axes of which one at least must split the work; 0: none must
};

// Returns where a result that comes as `placements` lies by a pin: there too where the pin is open.
mesh::Placements resolved(const mesh::Placements& pin, const mesh::Placements& placements);

// Returns a way in which everything is replicated.
Choice replicated(const Call& call, size_t axes);

// Returns the cheapest choice by bytes moved: redistributing operands, reducing Partial results at
// the latest behind this node, and bringing pinned results to their place; a product's arithmetic
// counts too.
Choice choose(const Call& call, const Pattern& pattern, const Situation& situation,
              const mesh::Mesh& mesh, Redistributor& redistributor);

// Cuts the choice's tensors so on the axis: operands that lack the dim stay as they are, or are
// Partial where they are added inside a sum over it; results that lack it become Partial by its
// role.
void place(Choice& choice, const Pattern& pattern, Cut cut, int axis);

// Returns true when two axes are Partial in different ways.
bool mixes_reductions(const mesh::Placements& placements);

// Returns true when all tensors of the choice can be cut in the runs it gives them.
bool runs_divide(const Call& call, const Choice& choice, const mesh::Mesh& mesh);

// Returns true when the dim may be cut so on the axes together: no shard is empty, and where the
// dim is `even` or cut in runs, all are equal; every result that lacks the dim has a meaning by its
// role.
bool may_shard(const Call& call, const Pattern& pattern, Cut cut, const std::vector<int>& axes,
               const mesh::Mesh& mesh);

}  // namespace perigee::shard
