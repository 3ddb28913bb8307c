// Seconds of a message between stages of unequal submeshes: each rank sends its box to the ranks
// whose boxes intersect it (compile/stages/stage_transfers.h).
#pragma once

#include <cstdint>

#include "search/space/choice.h"
#include "simulate/op_cost.h"

namespace perigee::search {

// The sending or the receiving stage.
struct MessageEnd {
  Submesh submesh;
  int64_t first = 0;  // its first rank
};

// Returns the seconds until the rank with the most bytes to send or receive is done, with all its
// messages in flight at once. `bytes`: of the whole value, which is sharded by samples, and with
// `split` also over tensor ranks.
double message_seconds(const MessageEnd& from, const MessageEnd& to, double bytes, bool split,
                       simulate::OpCosts& costs);

}  // namespace perigee::search
