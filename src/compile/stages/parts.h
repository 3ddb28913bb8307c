// The sections of a pipeline stage's parts.
#pragma once

#include <vector>

#include "compile/draft/draft.h"
#include "compile/draft/source.h"

namespace perigee::compile {

// Returns the sections in the order in which they run for one microbatch. `kept`: for microbatches
// that keep their results.
std::vector<MicroSection> make_micro_sections(const std::vector<graph::NodeId>& micro,
                                              const Stage* stage, bool kept);

// With a pipeline: waits for sends before their memory is needed again.
void wait_for_sends(Draft& draft);

}  // namespace perigee::compile
