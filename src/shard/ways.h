// The ways in which the nodes of a graph may run on some axes of the mesh, the other axes being as
// they are: what a solver chooses from.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"
#include "shard/choose.h"
#include "shard/partition.h"
#include "shard/sites.h"
#include "shard/work.h"

namespace perigee::shard {

struct Way {
  Choice choice;  // on all axes; choice.cost is its work
};

// Per node: its ways, whole on the axes the first where it may be; equal nodes share theirs. A way
// takes one of the rule's on each axis, those together where its tensors can be cut so. What no
// parameter flows into (masks, tables of positions) runs whole: it is little work, which narrow.h
// shares out where all its readers want that, and many read it.
class Ways {
 public:
  // `base`: how the nodes run on the other axes.
  Ways(const graph::Graph& graph, const plan::Plan& plan, const SiteTable& sites,
       const Sharding& base, const std::vector<int>& axes, const WorkPrices& prices);

  const std::vector<Way>& of(size_t node) const { return lists_[list_of_[node]]; }
  // Returns equal numbers for nodes with the same ways.
  int number(size_t node) const { return list_of_[node]; }
  // Returns whether a parameter flows into the node.
  bool depends(size_t node) const { return depends_[node]; }

 private:
  std::vector<std::vector<Way>> lists_;
  std::vector<int> list_of_;   // per node
  std::vector<bool> depends_;  // per node
};

}  // namespace perigee::shard
