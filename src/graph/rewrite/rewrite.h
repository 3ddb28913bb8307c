// Rewrites a captured graph: every occurrence of a pattern of forward and backward ops is replaced
// by an equivalent implementation.
//
// Pattern and replacement are joint graphs in the text form (graph/graph.h) with the same inputs
// and outputs:
// - An input has the kind parameter if the pattern computes a gradient of it, else data.
// - An output `result` is a result of the forward ops; the input `gradient:y` is the gradient of the result `y`.
// - An output `gradient` is the contribution of the backward ops to the gradient of the input of that name. A graph without
//   that gradient need not have its ops.
//
// In both texts:
// - float32 stands for any one floating type.
// - A prime size >= 1009 stands for any size, and a product of such primes for the product of their sizes. 1009 as the first
//   size of a shape stands for one or more dims ([1009, 1013]: all dims but the last, and the last); dims in arguments count
//   accordingly.
// - A string argument "?x" stands for any number, the same at each occurrence. The replacement may use "1/?x".
// - float64 in the replacement is the type of statistics: float64 if the floating type is float64, else float32.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace perigee::graph {

struct RewriteRule {
  std::string name;
  Graph pattern, replacement;
};

// Throws Error naming the rule where a text does not parse or verify, they do not have the same
// inputs and outputs, or the first result does not need all forward ops of the pattern.
RewriteRule parse_rewrite(std::string name, std::string_view pattern, std::string_view replacement);

// The outcome of a rule.
struct Rewritten {
  int64_t count = 0;  // number of occurrences that were replaced
  // Occurrences of the forward ops that were not replaced: scope and reason.
  std::vector<std::string> refused;
};

// Replaces every occurrence of the pattern and returns the new graph. Values keep their numbers, the
// pattern's results, too: its other values lose their producers, new values are appended. An occurrence is not
// replaced if another op or an output of the graph reads an inner value, if its backward ops differ
// from the pattern's, or if a gradient adds an incoming gradient that is no operand of the ops that
// make its other parts. Inner ops that read no input (masks) may be shared, and stay while
// others read them. `within`: only occurrences whose forward ops that depend on the pattern's inputs
// are all in one of these scopes, or below it, are replaced; empty: all.
Graph rewrite(Graph graph, const RewriteRule& rule, Rewritten& done,
              std::span<const std::string> within = {});

}  // namespace perigee::graph
