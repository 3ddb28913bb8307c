// Simplifies a graph: removes outputs that a step does not need, and views without effect.
#pragma once

#include "compile/compile.h"
#include "graph/graph.h"

namespace perigee::compile {

// Drops the outputs that the step does not need: gradients of frozen parameters, results that are
// not requested and, in an evaluation, all but the loss and the results. The nodes stay, so that
// the plan's names of values hold; unused nodes are removed from the rank's graph. Throws Error for
// names the graph lacks.
graph::Graph select_outputs(graph::Graph graph, const StepSpec& spec);

// Removes views that cancel or have no effect (t of t, reshape of a reshape that nothing else
// reads, reshape to the same shape, detach). A gradient that is reshaped twice is copied once.
graph::Graph simplify_views(graph::Graph graph);

}  // namespace perigee::compile
