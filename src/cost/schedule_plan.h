// The schedule of a plan's pipeline.
#pragma once

#include "cost/schedule.h"
#include "plan/plan.h"

namespace perigee {

// Returns the schedule for the plan's stages, chunks and microbatches. Throws Error where it does
// not exist for them.
Schedule schedule_of(const plan::Plan& plan);

}  // namespace perigee
