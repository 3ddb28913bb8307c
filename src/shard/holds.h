// What a rank holds of a model that is placed, by groups of nodes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "mesh/placement.h"
#include "plan/plan.h"

namespace perigee::shard {

// Bytes of the rank that has the most. A value is in the group that makes it, a parameter in that
// which reads it first.
struct Holds {
  double trained = 0, frozen = 0;  // parameters
  double inner = 0;                // what the group makes and its own backward pass reads
  double read = 0;                 // what it makes and other groups read: held until they are done
  double working = 0;              // operands and results of the op that has the most
};

// How the values of a graph lie on all axes, and what is kept of them for the backward pass.
struct Lying {
  std::vector<mesh::Placements> values, kept;
};

// `groups`: of each node, from 0 to `count` - 1. `trains` says whether a parameter, by its name,
// is trained.
std::vector<Holds> find_holds(const graph::Graph& graph, const mesh::Mesh& mesh,
                              const std::vector<int>& groups, size_t count, const Lying& lying,
                              const std::function<bool(const graph::Input&)>& trains);

}  // namespace perigee::shard
