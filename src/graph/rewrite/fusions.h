// Built-in rules that replace layers written in primitive ops by one fused op in each
// pass (graph/ops.h).
#pragma once

#include <string>
#include <vector>

#include "graph/rewrite/rewrite.h"

namespace perigee::graph {

// Returns the rules. The variants of one layer have one name.
const std::vector<RewriteRule>& fusions();

// Returns their names, each once.
std::vector<std::string> fusion_names();

}  // namespace perigee::graph
