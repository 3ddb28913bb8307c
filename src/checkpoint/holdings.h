// Which ranks hold which parts of a checkpoint's tensors.
#pragma once

#include <vector>

#include "checkpoint/checkpoint.h"
#include "compile/compile.h"
#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::checkpoint {

// Returns the part of a tensor that a binding of the program is.
TensorPart part_of_binding(const compile::Program& program, const compile::Binding& binding);

// Returns every part of a parameter, buffer or state that some rank of the plan's mesh holds, of
// the training graph; the same list on all ranks. `program` is one rank's. States lie as their
// parameters or, where the plan's units cut them, in the ranks' pieces.
// Where ranks train copies of the model, a tensor is the average of theirs, and "copies:NAME" holds
// each, one behind the other along a first dim: but for those that have met after `step`.
std::vector<Holding> all_holdings(const compile::Program& program, const graph::Graph& graph,
                                  const plan::Plan& plan, const compile::StepSpec& spec,
                                  int64_t step);

// Returns the part of "copies:NAME" that one copy's part is.
TensorPart part_of_copies(const TensorPart& part, int64_t copies, int64_t copy);

// Returns whether the copies of a parameter, buffer or state of that name are apart after the step.
bool are_apart(const plan::Plan& plan, const std::string& name, int64_t step);

// Returns whether a checkpoint holds bindings of this kind.
bool is_kept(compile::Binding::Kind kind);

}  // namespace perigee::checkpoint
