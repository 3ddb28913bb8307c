// Matrix products that add a bias.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace perigee::compile {

// Replaces an aten::mm and the addition of a vector to each of its rows by one aten::addmm, which
// reads and writes the result once, and lets aten::_scaled_mm with a result of 16 bits add its bias. Views
// between both may reshape the rows. Products that others read, too, stay, and those of another
// part of a pipeline than the bias (`parts` by node: plan::parts_of; empty: there is no pipeline).
// Numbers change by rounding only.
graph::Graph fuse_bias(const graph::Graph& graph, std::vector<int> parts = {});

}  // namespace perigee::compile
