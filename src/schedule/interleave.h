// Interleaved microbatches: during the expert all-to-all of one microbatch, another
// computes (plan::Overlap::experts).
#pragma once

#include <cstddef>
#include <vector>

#include "plan/plan.h"
#include "schedule/schedule.h"

namespace perigee {

// Positions in an order, first and last included.
struct InterleavedRange {
  size_t first = 0, last = 0;
  bool operator==(const InterleavedRange&) const = default;
};

// Returns by position the range of ops that an op is interleaved with: a backward pass, the weight
// gradients that follow it, and the next forward pass, of another microbatch. An op that is not
// interleaved has its own position.
std::vector<InterleavedRange> interleaved_ranges(const std::vector<PipelineOp>& order);

// Throws Error where the plan has Overlap::experts and no stage has microbatches to interleave.
void check_interleaving(const plan::Plan& plan, const Schedule& schedule);

}  // namespace perigee
