// Parts of a pipeline's stage that share the copies of one frame: together they have fewer
// microbatches in flight at once than the sum of each part's maximum.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"
#include "schedule/schedule.h"

namespace perigee::compile {

// By part: the first part of its pool; the part itself where it shares its frame with no other.
using FramePools = std::vector<int>;

// Returns the pools of the whole graph, so that all ranks have the same: for each stage those that
// hold the least memory, where a part holds the values that its forward ops make and its backward
// ops read, and a copy of a shared frame has the size of its largest part.
FramePools pool_frames(const graph::Graph& whole, const plan::Plan& plan, const Schedule& schedule);

// Removes parts from their pool whose sections use results of another part of it: a run has one
// copy of a frame. `edges` are pairs of parts of which the second uses results of the first.
template <class Edges>
void separate_users(FramePools& pools, const Edges& edges) {
  const auto leave = [&](int part) {
    int heir = -1;
    for (size_t p = 0; p < pools.size(); ++p) {
      if (pools[p] != part || static_cast<int>(p) == part) continue;
      if (heir < 0) heir = static_cast<int>(p);
      pools[p] = heir;
    }
    pools[part] = part;
  };
  for (const auto& [from, to] : edges) {
    if (from == to || pools[from] != pools[to]) continue;
    leave(from);
    leave(to);
  }
}

}  // namespace perigee::compile
