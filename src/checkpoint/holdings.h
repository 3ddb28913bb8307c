// Which ranks hold which parts of a checkpoint's tensors.
#pragma once

#include <vector>

#include "checkpoint/checkpoint.h"
#include "compile/compile.h"
#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::checkpoint {

// Returns the part of a tensor that a binding of the program holds.
TensorPart part_of_binding(const compile::Program& program, const compile::Binding& binding);

// Returns every part of a parameter, buffer or state that some rank of the plan's mesh holds, of
// the training graph; the same list on all ranks. `program` is one rank's. States have the
// placements of their parameters or, where the plan's units shard them, are in the ranks' pieces.
// Where ranks train copies of the model, a tensor is the average over the copies, and "copies:NAME"
// has them stacked along a new first dim, unless the copies are equal after `step` (are_apart).
std::vector<Holding> all_holdings(const compile::Program& program, const graph::Graph& graph,
                                  const plan::Plan& plan, const compile::StepSpec& spec,
                                  int64_t step);

// Returns the part of "copies:NAME" that holds the part of one copy.
TensorPart part_of_copies(const TensorPart& part, int64_t copies, int64_t copy);

// Returns whether the copies of a parameter, buffer or state of the training graph may differ after
// the step.
bool are_apart(const graph::Graph& graph, const plan::Plan& plan, const std::string& name,
               int64_t step);

// Returns whether a checkpoint of the plan holds the binding: a parameter, buffer or state. Of a
// loss scale that is not dynamic (plan::LossScale::Kind), only the number of skipped steps is
// saved: the plan or the host gives its value.
bool is_kept(const plan::Plan& plan, const compile::Binding& binding);

}  // namespace perigee::checkpoint
