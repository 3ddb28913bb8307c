// A plan's rewrites, carried out.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/rewrite.h"
#include "plan/plan.h"

namespace perigee::plan {

// Applies the rewrites in order. Values keep their numbers (graph/rewrite.h). `done`, where given,
// receives what became of each. Throws Error for a rewrite without texts that no built-in one has
// the name of, and what graph::parse_rewrite throws.
graph::Graph apply(const std::vector<Rewrite>& rewrites, graph::Graph graph,
                   std::vector<graph::Rewritten>* done = nullptr);

}  // namespace perigee::plan
