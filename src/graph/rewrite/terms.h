// Sums of the gradients that several ops contribute to one value.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace perigee::graph {

// A sum by which autograd accumulates a gradient from several ops.
inline bool is_sum(const Node& node) {
  return node.phase == Phase::backward && node.op == "aten::add.Tensor" && node.args.size() == 2 &&
         std::holds_alternative<ValueId>(node.args[0].second) &&
         std::holds_alternative<ValueId>(node.args[1].second);
}

// Returns term 0 or 1 of a sum.
inline ValueId term_of(const Node& node, size_t a) {
  return std::get<ValueId>(node.args[a].second);
}

// The values that add up to a gradient of the pattern. `readers` counts those of each value.
inline void find_terms(const Graph& pattern, const std::vector<int>& readers, ValueId v, bool root,
                       std::vector<ValueId>& terms) {
  const auto n = pattern.values[v.index].producer;
  if (n >= 0 && is_sum(pattern.nodes[n]) && (root || readers[v.index] == 1)) {
    find_terms(pattern, readers, term_of(pattern.nodes[n], 0), false, terms);
    find_terms(pattern, readers, term_of(pattern.nodes[n], 1), false, terms);
  } else {
    terms.push_back(v);
  }
}

}  // namespace perigee::graph
