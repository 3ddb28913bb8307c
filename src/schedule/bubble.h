// The bubble of a pipeline schedule in closed form: seconds of a step beyond the slowest stage's
// passes times microbatches, of at least two stages. Exact for fixed orders of identical parts; a
// lower bound for orders with split backward passes. Each grows with `all_stages`; together with
// slowest * microbatches it grows with `slowest`, so values that are not known yet can be replaced
// by lower bounds.
#pragma once

#include "schedule/description.h"

namespace perigee::schedule {

// gpipe: the first microbatch's forward passes to the last stage, and the last one's backward
// passes back.
double fill_and_drain_bubble(const PipelineTimes& times);

// 1f1b (slope 1) and eager_1f1b (slope 2), see Description::flight_slope.
double warm_up_bubble(const PipelineTimes& times, int flight_slope);

// A lower bound where messages take more than half of a part's passes.
double interleaved_bubble(const PipelineTimes& times);

double looped_bfs_bubble(const PipelineTimes& times);

// Lower bound of any order with split backward passes and at most `cap` microbatches of a whole
// stage in flight; with two chunks in V shape. `waits_at_cap`: a stage waits once for its messages
// when it has `cap` in flight, as far as weight gradients do not fill the wait.
double split_bubble(const PipelineTimes& times, double cap, bool waits_at_cap = false);

}  // namespace perigee::schedule
