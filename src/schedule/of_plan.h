// The schedule of a plan's pipeline.
#pragma once

#include <vector>

#include "plan/plan.h"
#include "schedule/schedule.h"

namespace perigee {

// Returns the schedule for the plan's stages, chunks and microbatches. Throws Error where it does
// not exist for them.
Schedule schedule_of(const plan::Plan& plan);

// Returns the stage of each part of the plan's pipeline, without making its orders.
std::vector<int> stage_of_parts(const plan::Plan& plan);

}  // namespace perigee
