// Where a stage may run two microbatches in turns: while what one has sent to experts is under way,
// the other computes (plan::Overlap::experts).
#pragma once

#include <cstddef>
#include <vector>

#include "cost/schedule.h"
#include "plan/plan.h"

namespace perigee {

// Positions in an order, both included.
struct Span {
  size_t first = 0, last = 0;
  bool operator==(const Span&) const = default;
};

// Returns by position with which others an op runs in turns: a backward pass, the gradients of
// weights that follow it, and the forward pass of another microbatch behind them. An op that runs
// by itself has its own position.
std::vector<Span> turns_of(const std::vector<PipelineOp>& order);

// Throws Error where overlap's experts are asked for and no stage has anything to run in turns.
void check_turns(const plan::Plan& plan, const Schedule& schedule);

}  // namespace perigee
