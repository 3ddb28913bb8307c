// Orders by a fixed rule. They never split the backward pass.
#pragma once

#include "schedule/description.h"

namespace perigee::schedule {

// Each stage runs as many forwards as it may have in flight, then alternately one backward and one
// forward, then the remaining backwards. In flight: all microbatches (Description::holds_all), else
// flight_slope * later stages + 1 + options.extra.
Orders warm_up_then_alternate(const Description& schedule, const ScheduleOptions& options,
                              const Shape& shape);

// Megatron's interleaved 1F1B: groups of options.group microbatches (default: stages) run through
// chunk 0, then chunk 1, ... Throws Error unless stages <= group <= microbatches and the last group
// has 0 or at least `stages` microbatches left.
Orders interleaved(const Description& schedule, const ScheduleOptions& options, const Shape& shape);

// All microbatches through chunk 0, then chunk 1, ...; then the exact reverse.
Orders looped_bfs(const Description& schedule, const ScheduleOptions& options, const Shape& shape);

}  // namespace perigee::schedule
