// The search for orders with split backward passes: the zero-bubble and V schedules.
#pragma once

#include "schedule/description.h"

namespace perigee::schedule {

// Returns orders with split backward passes and at most `cap` chunk activations in flight per
// stage: those with the shortest longest span found, then the shortest makespan. It tries the
// published orders and list scheduling under several policies and cost models, places weight
// gradients for the real costs and moves ops into gaps; it stops at a lower bound or when its
// budget of steps (not of time) is spent. Requires cap >= chunks.
Orders search(const Shape& shape, int cap);

// Returns search()'s orders under the schedule's flight_cap and options.memory_limit. Throws Error
// for a limit below one microbatch.
Orders searched_orders(const Description& schedule, const ScheduleOptions& options,
                       const Shape& shape);

// Joins an input gradient and the weight gradient right after it into one backward wherever no
// start changes.
Orders join_backwards(const Shape& shape, const Orders& orders);

}  // namespace perigee::schedule
