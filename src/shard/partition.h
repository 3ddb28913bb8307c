// From the whole graph to one rank's local graph: propagate placements through the sharding rules,
// turn redistributes into collectives, make types local.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "mesh/placement.h"
#include "plan/plan.h"

namespace perigee::shard {

// Placements of every value, and of every node's operands and results. Where an operand's or a
// result's placements differ from the value's, a redistribute is inserted. Indexed like
// graph.values and graph.nodes.
struct Sharding {
  std::vector<mesh::Placements> values;
  std::vector<std::vector<mesh::Placements>> operands;  // [node][operand in each_operand order]
  std::vector<std::vector<mesh::Placements>> results;   // [node][output]
  // Ops that run replicated: no rule covers them, or their rule lacks one of their attributes.
  std::vector<std::string> replicated_ops;
};

// Chooses placements for every value from the plan's pins and the ops' rules: each op takes the
// sharding that moves the fewest bytes. Gradients of replicated parameters stay Partial; compile/
// reduces them. Throws Error for an op that the pins leave no sharding.
Sharding propagate(const graph::Graph& graph, const plan::Plan& plan);

// One rank's graph. Inputs and outputs keep their names; types are local; `comm::` nodes move data.
// All ranks have the same nodes in the same order, and so meet the same collectives; only types and
// arguments differ. A replicated value that becomes Partial is therefore a node on every rank, with
// the argument `part`: the value (perigee::reshape to the same shape) on the first rank of the
// axes, zeros (perigee::full with `part`, the value) on the others.
struct LocalGraph {
  graph::Graph graph;
  std::vector<mesh::Placements> inputs;  // like graph.inputs
  // Like graph.outputs. A gradient has its parameter's placements, but may be Partial (not yet
  // reduced) where the parameter is replicated. The loss may be Partial. A buffer has its input's
  // placements. Results are not Partial.
  std::vector<mesh::Placements> outputs;
};

LocalGraph partition(const graph::Graph& graph, const Sharding& sharding, const plan::Plan& plan,
                     int64_t rank);

}  // namespace perigee::shard
