// Simplifies a graph: outputs that a step does not want, views that do nothing.
#pragma once

#include "compile/compile.h"
#include "graph/graph.h"

namespace perigee::compile {

// Drops the outputs that the step does not want: gradients of frozen parameters, all but the loss
// and the results in an evaluation, results nobody asked for. The nodes stay, so that the plan's
// names of values hold; unused nodes are removed from the rank's graph. Throws Error for names
// the graph lacks.
graph::Graph select_outputs(graph::Graph graph, const StepSpec& spec);

// Removes views that undo each other or do nothing (t of t, reshape of reshape, reshape to the same
// shape, detach).
graph::Graph simplify_views(graph::Graph graph);

}  // namespace perigee::compile
