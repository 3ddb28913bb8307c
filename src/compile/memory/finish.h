// The program of a draft.
#pragma once

#include "compile/draft/draft.h"

namespace perigee::compile {

// Cuts the draft's sections into the program's (first, middle, last microbatch), with
// order and releases.
Program finish(Draft draft);

}  // namespace perigee::compile
