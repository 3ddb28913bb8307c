// What stages of unequal submeshes take to hand a value on: each rank sends its box to those whose
// boxes meet it (compile/crossings.h).
#pragma once

#include <cstdint>

#include "search/choice.h"
#include "search/op_cost.h"

namespace perigee::search {

struct End {
  Submesh submesh;
  int64_t first = 0;  // its first rank
};

// Returns the seconds until the rank that sends or receives the most is done, all its messages
// being under way at once. `bytes` are those of the whole value, which lies in boxes of samples,
// and with `split` of each its tensor ranks' parts.
double transfer_seconds(const End& from, const End& to, double bytes, bool split, OpCosts& costs);

}  // namespace perigee::search
