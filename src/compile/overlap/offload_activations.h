// Activations in host memory between the forward and the backward pass.
#pragma once

#include "compile/draft/draft.h"
#include "plan/plan.h"

namespace perigee::compile {

// Copies the saved activations of Offload::activations to host memory, and back into values of
// their own: out while the ops of the next scope run, back Offload::prefetch scopes before the ops
// that read them.
void offload_activations(Draft& draft, const plan::Offload& offload);

}  // namespace perigee::compile
