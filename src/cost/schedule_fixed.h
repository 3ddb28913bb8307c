// Schedules that are a fixed order for given counts. They never split the backward pass.
#pragma once

#include "cost/schedule_shape.h"

namespace perigee::schedule {

// Each stage runs `in_flight(stage)` forwards, then one backward, one forward in turn, then the
// backwards left. 1f1b (PipeDream-flush): stages - stage + extra. eager_1f1b (Alpa): 2 * (stages -
// stage) - 1. gpipe: microbatches.
Orders warm_up_then_alternate(const Shape& shape, const std::vector<int>& in_flight);

// Megatron's interleaved 1F1B: groups of `group` microbatches run through chunk 0, then chunk 1,
// ...; the last group may be larger than none and smaller than `group`. Needs stages <= group <=
// microbatches and a last group of at least `stages`.
Orders interleaved(const Shape& shape, int group);

// All microbatches through chunk 0, then chunk 1, ...; then the exact reverse (Breadth-First
// Pipeline Parallelism).
Orders looped_bfs(const Shape& shape);

}  // namespace perigee::schedule
