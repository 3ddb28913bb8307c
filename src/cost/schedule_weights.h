// Where the weight gradients go, once the order of forwards and input gradients is settled.
#pragma once

#include <optional>

#include "cost/schedule_shape.h"

namespace perigee::schedule {

// An order with its time line.
struct Placed {
  Orders orders;
  TimeLine line;
};

// Inserts the weight gradients into `skeleton` (its own are ignored): where an activation must be
// freed to stay within `cap` chunk activations, in every gap they fit in, and in a shorter gap once
// the stage has been idle for `patience`; the rest at the end. Returns nothing where the skeleton
// cannot run within the cap.
std::optional<Placed> place_weights(const Shape& shape, int cap, double patience,
                                    const Orders& skeleton);

// Moves ops forward into gaps they fit in, never delaying another op and staying within `cap`.
Placed fill_gaps(const Shape& shape, int cap, const Placed& placed);

}  // namespace perigee::schedule
