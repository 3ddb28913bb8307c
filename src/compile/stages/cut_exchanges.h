// Interleaved microbatches: sections are cut at expert all-to-alls.
#pragma once

#include "compile/draft/draft.h"

namespace perigee::compile {

// Where a stage interleaves microbatches: cuts the sections of parts after each send to experts, so
// that another microbatch runs during the all-to-all. The pieces are consecutive and have the part
// and kind of their section.
void cut_exchanges(Draft& draft);

}  // namespace perigee::compile
