// Which parts of a pipeline's stage share the copies of one frame: what of them is in flight at
// once is fewer microbatches than each part has at most, added up.
#pragma once

#include <vector>

#include "cost/schedule.h"
#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::compile {

// By part: the first of the parts that it shares its frame with; itself where it shares it with
// none.
using FramePools = std::vector<int>;

// Returns the pools of a graph that no rank has cut yet, so that all ranks have the same: of each
// stage those for which the least memory is held, where a part holds what its forward ops make and
// its backward ops read, and a copy of a shared frame is as large as its largest part wants it.
FramePools pool_frames(const graph::Graph& whole, const plan::Plan& plan, const Schedule& schedule);

// Has each of the parts whose sections use what another one of its pool makes keep its own frame:
// a run has one copy of a frame. `edges` are pairs of parts of which the second uses what the first
// makes.
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
