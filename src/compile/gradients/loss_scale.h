// The loss scale and the steps that are skipped: state of a program whose plan guards its steps.
#pragma once

#include <vector>

#include "compile/draft/draft.h"
#include "graph/graph.h"
#include "plan/precision.h"

namespace perigee::compile {

// Multiplies the gradient at the start of the backward pass by a constant of this name, whose value
// make_state binds to the loss scale. Leaves a graph without gradients unchanged.
inline constexpr const char* kLossScale = "perigee.loss_scale";
graph::Graph scale_loss(graph::Graph graph, const plan::LossScale& scale);

// Scalars in the persistent frame, bound as states "loss_scale:value" (float32),
// "loss_scale:growth_tracker" and "loss_scale:skipped_steps" (float64): read by the host; which are
// saved: checkpoint::is_kept. A program that guards without a scale has the scale 1. Where the
// scale is given, the host writes "loss_scale:value" between steps.
struct LossScaleState {
  ValueId value, growth_tracker, skipped_steps;
  ValueId patience;      // float64, "loss_scale:patience": the steps that were not finite since the
                         // scale grew; undefined without hysteresis
  ValueId applied_step;  // float64: the steps that changed something, this one included
};

// Returns the state's values, undefined ones where neither the precision nor the step guards.
LossScaleState make_loss_scale(Draft& draft, const plan::Precision& precision, bool guarded);

// Appends the update by the gradients' squared norm, which is the same on all ranks. `examined`:
// the gradients' scale where perigee::examine_step_ wrote it, or undefined.
void update_loss_scale(const LossScaleState& state, const plan::LossScale& scale,
                       ValueId squared_norm, ValueId step, ValueId examined,
                       std::vector<DraftInstruction>& out);

}  // namespace perigee::compile
