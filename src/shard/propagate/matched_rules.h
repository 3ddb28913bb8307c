// The rule of each node, instantiated once for nodes with equal ops, attributes and types.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "mesh/placement.h"
#include "plan/plan.h"
#include "shard/rules/rule.h"

namespace perigee::shard {

// A rule instantiated for an op with its attributes and types.
struct MatchedRule {
  std::optional<Pattern> pattern;  // nothing: no rule covers it; it runs replicated
  std::function<std::vector<graph::ValueId>(RuleLowering&)> lower;
};

class MatchedRulesImpl;

// The rules of a graph's nodes: the built-in ones and the plan's. The graph must outlive it.
class MatchedRules {
 public:
  MatchedRules(const graph::Graph& graph, const plan::Plan& plan);
  ~MatchedRules();
  const MatchedRule& at(size_t node) const;
  // Returns equal numbers for nodes with equal ops, attributes and types.
  int number(size_t node) const;

 private:
  std::unique_ptr<MatchedRulesImpl> impl_;
};

// An op that runs replicated whatever the plan: no rule covers it, or its rule lacks one of the
// attributes that it has.
struct UncoveredOp {
  std::string op, scope;  // the first node
  int nodes = 0;
};

// Returns the ops without a rule whose tensors depend on samples, each once.
std::vector<UncoveredOp> uncovered_ops(const graph::Graph& graph, const plan::Plan& plan);

// Returns the placements of graph.inputs: the plan's pins, else dim 0 of batched data sharded over
// the batch axes, else replicated.
std::vector<mesh::Placements> place_inputs(const graph::Graph& graph, const plan::Plan& plan);

}  // namespace perigee::shard
