// Which part of a pipeline each op belongs to.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::plan {

// The part of an op that every part runs for itself where it uses it: it needs parameters only (a
// transposed weight), or no parameter (a mask), and draws nothing.
constexpr int kEveryPart = -1;

// Returns the part of every node of a graph, whole or local. Throws Error when the forward pass
// does not come to the pipeline's starts, in their order.
std::vector<int> parts_of(const graph::Graph& graph, const Pipeline& pipeline);

// Returns by value the first part that uses it, itself or through ops of every part; kEveryPart
// where none does.
std::vector<int> first_users(const graph::Graph& graph, const Pipeline& pipeline);

}  // namespace perigee::plan
