// Nodes that leave a rank's graph.
#pragma once

#include <vector>

#include "compile/rank.h"

namespace perigee::compile {

// Removes nodes, by node, from the graph and from the list of its stage. Their results have no
// producer then; a node that differentiates one of them differentiates nothing.
void remove_nodes(Local& local, const std::vector<bool>& removed);

}  // namespace perigee::compile
