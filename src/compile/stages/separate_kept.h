// Memory of microbatches that keep their results.
#pragma once

#include "compile/draft/draft.h"

namespace perigee::compile {

// Gives values that sections of kept parts and sections of other parts use within a microbatch
// (whole weights and gradients of units) a copy for the kept parts.
void separate_kept(Draft& draft);

}  // namespace perigee::compile
