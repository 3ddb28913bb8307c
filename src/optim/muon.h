// Muon (Jordan et al. 2024): updates matrices of hidden layers by their orthogonalized momentum.
// compile/gradients/tensor_step.h has its instructions.
#pragma once

#include "optim/adam.h"
#include "optim/description.h"

namespace perigee::optim {

struct Muon {
  static constexpr const char* kName = "muon";
  static constexpr UpdateKind kUpdate = UpdateKind::orthogonalized;
  static constexpr bool kDecoupledDecay = true;
  using Others = AdamW;  // updates embeddings, heads and parameters that are not matrices
  static constexpr State kStates[] = {{"momentum_buffer"}};
  static constexpr Attribute kAttributes[] = {{.name = "momentum",
                                               .fallback = 0.95,
                                               .job_default = 0.9,
                                               .least = 0,
                                               .less_than = 1,
                                               .about = "momentum (muon's paper: 0.95)"},
                                              {.name = "nesterov",
                                               .type = AttributeType::flag,
                                               .fallback = 1,
                                               .job_default = 0,
                                               .about = "Nesterov's momentum (muon's paper: true)"},
                                              {.name = "ns_steps",
                                               .type = AttributeType::integer,
                                               .fallback = 5,
                                               .least = 1,
                                               .about = "steps of the Newton-Schulz iteration"}};
};

}  // namespace perigee::optim
