// What propagation and partition share: each node's pattern, made once for equal nodes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "graph/graph.h"
#include "mesh/placement.h"
#include "plan/plan.h"
#include "shard/rule.h"

namespace perigee::shard {

// A distinct op with its attributes and types.
struct Site {
  std::optional<Pattern> pattern;  // nothing: no rule covers it, run it replicated
  std::function<std::vector<graph::ValueId>(Lowering&)> lower;
};

class Sites;

// The sites of a graph's nodes, by the built-in rules and the plan's. The graph must outlive it.
class SiteTable {
 public:
  SiteTable(const graph::Graph& graph, const plan::Plan& plan);
  ~SiteTable();
  const Site& at(size_t node) const;
  // Returns equal numbers for equal sites.
  int number(size_t node) const;

 private:
  std::unique_ptr<Sites> sites_;
};

// Returns the placements of graph.inputs: the plan's pins, the batch sharded, all else replicated.
std::vector<mesh::Placements> place_inputs(const graph::Graph& graph, const plan::Plan& plan);

}  // namespace perigee::shard
