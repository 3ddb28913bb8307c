// Adafactor (Shazeer and Stern 2018): torch.optim.Adafactor. compile/gradients/tensor_step.h has
// its instructions.
#pragma once

#include "optim/description.h"

namespace perigee::optim {

struct Adafactor {
  static constexpr const char* kName = "adafactor";
  static constexpr UpdateKind kUpdate = UpdateKind::factored;
  static constexpr bool kDecoupledDecay = true;
  // Parameters of two or more dims have row_var and col_var, replicated: means over the last dim
  // and over the last but one. Other parameters have `variance`.
  static constexpr State kStates[] = {{"row_var"}, {"col_var"}, {"variance"}};
  static constexpr Attribute kAttributes[] = {
      {.name = "beta2_decay",
       .fallback = -0.8,
       .least = -10,
       .most = 0,
       .about = "new squares have the weight step ^ beta2_decay in the second moments"},
      {.name = "clip_threshold",
       .fallback = 1,
       .more_than = 0,
       .about = "largest root mean square of an update"}};
};

}  // namespace perigee::optim
