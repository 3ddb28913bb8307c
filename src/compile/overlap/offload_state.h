// Optimizer state in host memory.
#pragma once

#include "compile/draft/draft.h"
#include "plan/plan.h"

namespace perigee::compile {

// Copies values that outlive a step in host memory (Home::host) to the device for each instruction
// that touches them, Offload::prefetch such instructions ahead, and back where it writes them,
// while the next one runs.
void stage_host_state(Draft& draft, const plan::Offload& offload);

}  // namespace perigee::compile
