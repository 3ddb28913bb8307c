// Runs of a stage's sections, and the copy of each frame that a run uses.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "compile/draft/draft.h"

namespace perigee::compile {

// One run of a section for a microbatch.
struct DraftRun {
  int32_t section = 0, microbatch = 0;
  size_t position = 0;  // of its op in Draft::order; beyond the last for a deferred run
};

// Return, with a pipeline, the runs of Draft::order, where pieces of interleaved sections
// alternate; the number of copies of each frame, by the part that owns it; and for each run the
// copies that it uses. A microbatch has a copy from a part's forward pass to the last section that
// touches it.
std::vector<DraftRun> runs_of(const Draft& draft);
std::map<PartId, int64_t> copies_of_frames(const Draft& draft);
std::vector<std::map<PartId, int32_t>> copies_by_run(const Draft& draft);

// Returns the part whose frame holds values that deferred weight gradients read and other sections
// of their stage make, by root.
std::map<int32_t, PartId> deferred_operands(const Draft& draft);

}  // namespace perigee::compile
