// The search behind the zero-bubble and V schedules.
#pragma once

#include "cost/schedule_shape.h"

namespace perigee::schedule {

// Returns orders with split backwards that hold at most `cap` chunk activations per stage, with the
// shortest longest span found, then the shortest makespan. It tries the papers' orders and list
// scheduling under several policies and cost models, places weight gradients for the real costs and
// moves ops into gaps; it stops at a lower bound or when its budget of steps (not of time) is
// spent. Needs cap >= chunks.
Orders search(const Shape& shape, int cap);

// Joins an input gradient and the weight gradient right behind it into one backward wherever no
// start changes.
Orders join_backwards(const Shape& shape, const Orders& orders);

}  // namespace perigee::schedule
