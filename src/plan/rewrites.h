// Applies a plan's rewrites to a graph.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/rewrite/rewrite.h"
#include "plan/plan.h"

namespace perigee::plan {

// Applies the rewrites in order and returns the new graph. Values keep their numbers
// (graph/rewrite/rewrite.h). `done`, if given, receives each rewrite's outcome. Throws Error for a
// rewrite without texts whose name is not a built-in one's, and the errors of graph::parse_rewrite
// and check_data_ops (plan/data_ops.h).
graph::Graph apply(const std::vector<Rewrite>& rewrites, graph::Graph graph,
                   std::vector<graph::Rewritten>* done = nullptr);

}  // namespace perigee::plan
