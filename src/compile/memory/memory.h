// Addresses of a draft's values.
#pragma once

#include "compile/draft/draft.h"

namespace perigee::compile {

// Assigns addresses: pointwise results reuse the memory of operands that die, then every frame is
// packed by lifetimes. Sets frames, places and peak.
void assign_memory(Draft& draft);

}  // namespace perigee::compile
