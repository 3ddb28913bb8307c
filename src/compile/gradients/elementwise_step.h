// The instruction of an elementwise optimizer, from its description (optim/description.h).
#pragma once

#include <vector>

#include "compile/compile.h"
#include "compile/draft/draft.h"

namespace perigee::compile {

// Operands that all updates of a step share.
struct StepValues {
  ValueId scale;  // multiplies the gradients; NaN where a guarded step changes nothing
  ValueId step;
  bool guarded = false;
};

// Tensors of equal size that one instruction updates.
struct ElementwiseUpdate {
  ValueId weights;
  std::vector<ValueId> states;  // like optim::flat_states()
  ValueId gradients;
  ValueId learning_rate;
  graph::Arg weight_decay;  // a number or a value
  ValueId noise;            // for rounding at random; undefined: round to nearest
};

// Returns an attribute of the optimizer as an instruction's argument.
graph::Arg attribute_of(const optim::Description& optimizer, const StepSpec& spec,
                        std::string_view name);

// Returns the instruction that updates weights and states.
DraftInstruction elementwise_update(const optim::Description& optimizer, const StepSpec& spec,
                                    ElementwiseUpdate update, const StepValues& values);

}  // namespace perigee::compile
