// Waits for collectives.
#pragma once

#include "compile/draft/draft.h"

namespace perigee::compile {

// Inserts the wait for each collective before the first instruction that needs it.
void insert_waits(Draft& draft);

}  // namespace perigee::compile
