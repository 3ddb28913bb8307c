// Start of collectives and unpacking of their results.
#pragma once

#include "compile/draft/draft.h"

namespace perigee::compile {

// Starts collectives, and their packing, as soon as their operands are ready, and unpacks results
// just before they are needed. Collectives keep their order, which is the same on all ranks. Those
// that read parameters stay, since gathering them earlier takes memory.
void order_collectives(Draft& draft);

}  // namespace perigee::compile
