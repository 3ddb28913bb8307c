// Prepares a graph: removes outputs that a step does not need and views without effect, and orders
// the reads and writes of buffers.
#pragma once

#include "compile/compile.h"
#include "graph/graph.h"

namespace perigee::compile {

// Drops the outputs that the step does not need: gradients of frozen parameters, results that are
// not requested and, in an evaluation, all but the loss and the results. The nodes stay, so that
// the plan's names of values hold; unused nodes are removed from the rank's graph. Throws Error for
// names the graph lacks.
graph::Graph select_outputs(graph::Graph graph, const StepSpec& spec);

// Moves ops of the backward pass that only make new values of buffers, of values of the forward
// pass, into the forward pass, after the values that they read. Capture records writes through
// views of a buffer at the end; another microbatch's forward pass, which may run before this one's
// backward pass, reads the new value.
graph::Graph write_buffers_early(const graph::Graph& graph);

// Removes views that cancel or have no effect (t of t, reshape of a reshape that nothing else
// reads, reshape to the same shape, detach). A gradient that is reshaped twice is copied once.
graph::Graph simplify_views(graph::Graph graph);

// Copies values of buffers that are read after the step has written the buffer's new value: those
// that are a new value of another buffer (`before = now`), or a result, since new values are
// written one after the other, and, where the backward pass is `apart` (has_stages: a section of
// its own, which runs after the forward pass has written its buffers), those that the backward pass
// reads. There, an input that a buffer takes as it is is copied too, by the part of a pipeline that
// reads it. Copies belong to the forward pass.
graph::Graph keep_buffers(const graph::Graph& graph, bool apart);

}  // namespace perigee::compile
