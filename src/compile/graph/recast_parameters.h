// Casts of parameters that the backward pass repeats.
#pragma once

#include "graph/graph.h"

namespace perigee::compile {

// Makes the backward pass cast parameters a second time: with several microbatches in flight, each
// would otherwise keep a low-precision copy of them.
graph::Graph recast_parameters(graph::Graph local);

}  // namespace perigee::compile
