// The shardings that a node's pattern allows, and the cheapest of them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "mesh/mesh.h"
#include "mesh/placement.h"
#include "plan/plan.h"
#include "shard/redistribute.h"
#include "shard/rules/rule.h"

namespace perigee::shard {

// How a node runs: required placements of its operands, and the placements of its results.
struct NodeSharding {
  std::vector<mesh::Placements> operands, results;
  double cost = 0;
};

// Restrictions of a plan (plan::Plan::forbidden) on nodes' shardings.
struct Forbidden {
  bool one_axis = false;    // no tensor may be split over several axes
  uint64_t share_over = 0;  // for products; bits: axes of which at least one must split the work
};
Forbidden forbidden_by(const plan::Plan& plan);

// The state of propagation when it reaches a node.
struct NodeContext {
  std::vector<mesh::Placements> operands;  // per operand
  // per operand: other placements in which its value exists
  std::vector<std::vector<const mesh::Placements*>> versions;
  std::vector<uint64_t> free_on;  // per result, bits: axes on which it may stay Partial at no cost
  std::vector<const mesh::Placements*> pins;  // per result: the plan's pin, or nullptr
  // per result that is a gradient: its parameter's placements (Partial is as good as replicated),
  // else nullptr
  std::vector<const mesh::Placements*> targets;
  bool one_axis = false;    // no tensor may be split over several axes
  uint64_t share_over = 0;  // bits: axes of which one must split the work; 0: no restriction
};

// Returns the pin, with `placements` on the axes where it is open.
mesh::Placements resolve_pin(const mesh::Placements& pin, const mesh::Placements& placements);

// Returns the sharding in which everything is replicated.
NodeSharding replicated_sharding(const Call& call, size_t axes);

// Returns the sharding that costs least in bytes moved: redistributing operands, reducing Partial
// results, moving pinned results to their pins, and a product's arithmetic. Its cost is infinite if
// the restrictions allow none.
NodeSharding cheapest_sharding(const Call& call, const Pattern& pattern, const NodeContext& context,
                               const mesh::Mesh& mesh, Redistributor& redistributor);

// Applies the cut to the sharding on the axis. Operands that lack the dim are unchanged, or Partial
// if they are added inside a sum over it; results that lack it become Partial by the dim's role.
void apply_cut(NodeSharding& choice, const Pattern& pattern, DimCut cut, int axis);

// Returns whether two axes are Partial with different reductions.
bool mixes_reductions(const mesh::Placements& placements);

// Returns whether all tensors can be cut in the runs that the sharding gives them.
bool runs_divide(const Call& call, const NodeSharding& choice, const mesh::Mesh& mesh);

// Returns whether the dim may be cut on the axes together: no shard is empty, shards are equal if
// the dim is `even` or cut in runs, and its role defines the results that lack it.
bool may_shard(const Call& call, const Pattern& pattern, DimCut cut, const std::vector<int>& axes,
               const mesh::Mesh& mesh);

}  // namespace perigee::shard
