// Layers written out in primitive ops, and the one op forward and one backward that compute the
// same (graph/ops.h).
#pragma once

#include <string>
#include <vector>

#include "graph/rewrite.h"

namespace perigee::graph {

// Returns the rules, those of one layer under one name: it may be written in several ways.
const std::vector<RewriteRule>& fusions();

// Returns their names, each once.
std::vector<std::string> fusion_names();

}  // namespace perigee::graph
