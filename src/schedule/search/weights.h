// Places weight gradients in a given order of forwards and input gradients.
#pragma once

#include <optional>

#include "schedule/shape.h"

namespace perigee::schedule {

// An order with its time line.
struct Placed {
  Orders orders;
  TimeLine line;
};

// Inserts the weight gradients into `skeleton` (its own are ignored): where memory must be freed to
// stay within `cap` chunk activations in flight, in every gap that is long enough, and in a shorter
// gap once the stage has been idle for `patience`; the rest at the end. Returns nothing where the
// skeleton cannot run within the cap.
std::optional<Placed> place_weights(const Shape& shape, int cap, double patience,
                                    const Orders& skeleton);

// Moves ops to earlier gaps that they fit in. Delays no other op and stays within `cap`.
Placed fill_gaps(const Shape& shape, int cap, const Placed& placed);

}  // namespace perigee::schedule
