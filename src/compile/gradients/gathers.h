// All-gathers of weights that are stored in parts.
#pragma once

#include <cstdint>
#include <vector>

#include "compile/stages/stage.h"
#include "graph/graph.h"
#include "plan/plan.h"
#include "plan/units.h"

namespace perigee::compile {

// An all-gather of a unit's weights in the microbatch section.
struct Gather {
  int32_t bucket = -1;
  graph::Phase phase = graph::Phase::forward;
  graph::NodeId before = 0;  // the first node of all ranks before which it starts
};

// Returns the all-gathers of units that are stored in parts, in the order of `before`: once where
// the weights are used, or once each for forward and backward ops, as early as
// Communication::prefetch_* says. All ranks that share a unit get the same answer: `local` is the
// graph before cut_microbatches removes nodes that only other ranks need. An all-gather starts in
// the section of a pipeline's part that uses it, unless it serves all microbatches.
std::vector<Gather> place_gathers(const graph::Graph& local, const plan::Plan& plan,
                                  const std::vector<plan::FlatUnit>& flats, const Stage* stage);

}  // namespace perigee::compile
